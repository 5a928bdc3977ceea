// How the calls of each row of output_syntax.h are written, as constraints on an answer: for tool
// choices that force a call, and for tools whose arguments must be valid ("strict").
// Private to server/openai/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar_compiler.h"
#include "server/openai/output_syntax.h"

namespace heddle::server {

// A tool as a grammar needs it.
struct CallableTool {
  std::string name;
  std::string schema;  // of its arguments: an object's
};

// Whether the calls of `syntax` can be written by a grammar: a row of the table here.
bool HasCallGrammar(const ToolSyntax& syntax);

// `min_calls` to `max_calls` calls (kUnbounded: any number) of `tools`, with what stands around
// them. `end_marks`: texts of the tokens that end an answer; what would close a call with one of
// them is left to the end. REQUIRES: HasCallGrammar; one tool at least.
engine::grammar::Constraint CallsConstraint(const ToolSyntax& syntax,
                                            const std::vector<CallableTool>& tools,
                                            int32_t max_calls,
                                            const std::vector<std::string>& end_marks);

// Any text in which calls occur, or none: what opens a call is followed by one of `tools`.
engine::grammar::Constraint TextWithCalls(const ToolSyntax& syntax,
                                          const std::vector<CallableTool>& tools, int32_t max_calls,
                                          const std::vector<std::string>& end_marks);

// `answer` as the model introduces what is not a call: by nothing, in most families.
engine::grammar::Constraint AsContent(const OutputSyntax& syntax,
                                      engine::grammar::Constraint answer);

// Reasoning before `answer`: free, up to its closing mark; `is_open`: the prompt has opened it.
engine::grammar::Constraint BehindReasoning(const ReasoningSyntax& syntax, bool is_open,
                                            engine::grammar::Constraint answer);

}  // namespace heddle::server
