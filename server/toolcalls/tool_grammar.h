// The notation of calls for each row of output_syntax.h, as constraints on an answer: for tool
// choices that force a call, and for tools whose arguments must be valid ("strict").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar_compiler.h"
#include "server/toolcalls/output_syntax.h"

namespace heddle::server {

// A tool as a grammar needs it.
struct CallableTool {
  std::string name;
  std::string schema;  // schema of its arguments, an object
  // Keywords of the schema that are not supported are an error; otherwise they are left out.
  bool is_strict = true;
};

// Whether a grammar can write the calls of `syntax`: it has a row of the table here.
bool HasCallGrammar(const ToolSyntax& syntax);

// `min_calls` to `max_calls` calls (kUnbounded: any number) of `tools`, with the text around them.
// `end_marks`: texts of the tokens that end an answer; a closing mark that is one of them is left
// to the end. REQUIRES: HasCallGrammar; at least one tool.
engine::grammar::Constraint CallsConstraint(const ToolSyntax& syntax,
                                            const std::vector<CallableTool>& tools,
                                            int32_t max_calls,
                                            const std::vector<std::string>& end_marks);

// Any text with or without calls: each opening of a call is followed by a call of one of `tools`.
engine::grammar::Constraint TextWithCalls(const ToolSyntax& syntax,
                                          const std::vector<CallableTool>& tools, int32_t max_calls,
                                          const std::vector<std::string>& end_marks);

// `answer` with the model's introduction of content, which is empty in most families.
engine::grammar::Constraint AsContent(const OutputSyntax& syntax,
                                      engine::grammar::Constraint answer);

// Reasoning before `answer`: free text up to its closing mark; `is_open`: the prompt has opened it.
engine::grammar::Constraint BehindReasoning(const ReasoningSyntax& syntax, bool is_open,
                                            engine::grammar::Constraint answer);

}  // namespace heddle::server
