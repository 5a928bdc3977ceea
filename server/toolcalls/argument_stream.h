// The arguments of a call while the model is still writing it: finds where they begin in JSON-like
// formats ({"name": "f", "arguments": {...}} and f[ARGS]{...}), and where they end. It passes on
// the arguments' JSON without the white space between its tokens.
// If a call is not written in that order, or its arguments are not an object, they are never found
// to begin, and the whole call is decoded at its end (call_decoders.h).
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/toolcalls/output_syntax.h"
#include "server/toolcalls/tool_call.h"

namespace heddle::server {

class ArgumentStream {
 public:
  // Begins a new call. `syntax` and `tools` must outlive it.
  void Begin(const ToolSyntax* syntax, const ToolSet* tools);

  // Reads the call's text so far, which has only grown since the last time. Once the name is known
  // and the arguments have begun, appends to *out the part of them that is certain: neither in a
  // closing mark (CallEnd::kMark) nor behind the arguments.
  void Read(std::string_view text, std::string* out);

  bool begun() const { return state_ == State::kInside || state_ == State::kBehind; }
  bool complete() const { return state_ == State::kBehind; }
  const std::string& name() const { return name_; }
  // Where to search for the call's closing mark: marks within a string of the arguments are text.
  // npos: not yet.
  size_t search_from() const;

 private:
  enum class State : uint8_t {
    kBefore,  // the arguments have not begun
    kNever,   // they are unknown until the call is complete
    kInside,
    kBehind,
  };

  void FindBegin(std::string_view text);
  void Pass(std::string_view text, std::string* out);

  const ToolSyntax* syntax_ = nullptr;
  const ToolSet* tools_ = nullptr;
  State state_ = State::kNever;
  std::string name_;
  size_t at_ = 0;  // the first unread byte
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace heddle::server
