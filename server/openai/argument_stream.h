// The arguments of a call while the model still writes it: finds where they begin in JSON-like
// formats ({"name": "f", "arguments": {...}} and f[ARGS]{...}), and where they end. What passes
// through is the arguments' JSON without the white space between its tokens.
//
// Where a call is not written in that order, or its arguments are no object, it is never found to
// begin, and the whole call is decoded at its end (call_decoders.h). Private to server/openai/.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/openai/output_syntax.h"
#include "server/openai/tool_call.h"

namespace heddle::server {

class ArgumentStream {
 public:
  // A new call. `syntax` and `tools` outlive it.
  void Begin(const ToolSyntax* syntax, const ToolSet* tools);

  // Looks at the call's text so far, which has only grown since the last time. Once the name is
  // known and the arguments have begun, appends to *out what of them is certain: neither in a
  // closing mark (CallEnd::kMark) nor behind the arguments.
  void Read(std::string_view text, std::string* out);

  bool begun() const { return state_ == State::kInside || state_ == State::kBehind; }
  bool complete() const { return state_ == State::kBehind; }
  const std::string& name() const { return name_; }
  // Where to look for what closes the call: closing marks within a string of the arguments are
  // text. npos: not yet.
  size_t search_from() const;

 private:
  enum class State : uint8_t {
    kBefore,  // the arguments have not begun
    kNever,   // they cannot be told until the call is whole
    kInside,
    kBehind,
  };

  void FindBegin(std::string_view text);
  void Pass(std::string_view text, std::string* out);

  const ToolSyntax* syntax_ = nullptr;
  const ToolSet* tools_ = nullptr;
  State state_ = State::kNever;
  std::string name_;
  size_t at_ = 0;  // the first byte that is not looked at yet
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace heddle::server
