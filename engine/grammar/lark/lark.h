// Grammars in the notation of the Python package Lark, which vLLM, outlines, llguidance and
// OpenAI's custom tools take: rules in lower case, terminals in upper case, templates, %ignore and
// %import.
//   start: "SELECT" columns "FROM" NAME
//   columns: NAME ("," NAME)*
//   NAME: /[a-z]+/
//   %ignore /\s+/
// The texts are those that Lark's Earley parser takes with its lexer "dynamic_complete", with one
// difference: where %ignore allows something between two terminals and the second might read on
// where the first ended (`NAME "FROM"`), something has to stand there. So no text is split into
// other terminals by lexers that take the longest match. Priorities choose among trees, and not
// among texts, and are of no effect. A terminal with a lazy repeat ends where it first can.
// Sources: Lark's documentation, "Grammar Reference"; llguidance's of its extensions.
// Thread-safety: pure functions; a budget is used by one thread at a time.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

// The grammar that derives the texts of rule `start`. An INVALID_ARGUMENT error names line and
// column, or the rule or terminal.
absl::StatusOr<Grammar> ParseLark(std::string_view text, Budget* budget = nullptr);

// Whether a grammar is in Lark's notation, by its first definition; otherwise it is GBNF.
bool IsLark(std::string_view text);

// The grammar of the same texts as they are written between the quotes of a JSON string.
absl::StatusOr<Grammar> WithinJsonString(Grammar grammar, Budget* budget);

}  // namespace heddle::engine::grammar
