// How families of models write what is not plain content: tool calls and reasoning. A family is a
// row of a table; one parser (output_parser.h) reads all rows.
// The syntax follows from the model's chat template, which shows the model how to write; an
// operator may name another row. Marks are text: the token stream of an answer with a syntax
// includes the names of the special tokens that occur in them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/toolcalls/call_decoders.h"

namespace heddle::server {

// Marks of one kind; unused entries are empty.
using Marks = std::array<std::string_view, 4>;

// The end of one written call.
enum class CallEnd : uint8_t {
  kMark,      // at `close`
  kBrackets,  // where its opened brackets are closed again, outside of strings
};

struct ToolSyntax {
  std::string_view name;
  Marks open;  // the beginnings of a call, or of a section of calls
  // A call may also be the beginning of an answer, without a mark: the bracket that it opens with,
  // or 0. Only text that looks like a call from its first character on is held back.
  char bare = 0;
  CallEnd end = CallEnd::kMark;
  std::string_view close;    // kMark
  std::string_view between;  // kBrackets: characters before, between and behind a section's calls
  Marks noise;               // marks around calls that have no meaning by themselves
  Marks inner;               // special tokens inside of calls
  DecodeCalls decode = nullptr;
  size_t id_characters = 0;  // letters and digits that a call's id must have; 0: any id will do
  // The row applies if all of these occur in a chat template.
  std::array<std::string_view, 3> in_template;
};

struct ReasoningSyntax {
  std::string_view name;
  Marks open;
  Marks close;
  Marks noise;
  bool anywhere = false;  // false: opens only before any content
  std::array<std::string_view, 2> in_template;
};

// A part is null if the model does not write it.
struct OutputSyntax {
  const ToolSyntax* tools = nullptr;
  const ReasoningSyntax* reasoning = nullptr;

  bool empty() const { return tools == nullptr && reasoning == nullptr; }
  // All marks, which the token stream must not leave out.
  std::vector<std::string_view> AllMarks() const;
};

std::span<const ToolSyntax> ToolSyntaxes();
std::span<const ReasoningSyntax> ReasoningSyntaxes();

// The rows that a template's source suggests: the first that fit.
OutputSyntax SyntaxOf(std::string_view chat_template);

// `syntax` with rows named by an operator: "auto" keeps, "none" removes. INVALID_ARGUMENT lists the
// names.
absl::StatusOr<OutputSyntax> OverrideSyntax(OutputSyntax syntax, std::string_view tool_parser,
                                            std::string_view reasoning_parser);

// The id of a choice's `call`-th call; `unique` makes it unique over answers. Some templates refuse
// ids whose length is not their own.
std::string ToolCallId(const OutputSyntax& syntax, std::string_view unique, size_t choice,
                       size_t call);

// Whether a prompt ends inside reasoning, which its template has opened.
bool EndsInReasoning(std::string_view prompt_tail, const OutputSyntax& syntax);

}  // namespace heddle::server
