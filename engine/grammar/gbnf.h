// Grammars in GBNF, the notation of llama.cpp's grammars, also known as EBNF to other servers:
//   root ::= greeting " " name "!"     # a rule ends where the next begins
//   greeting ::= "Hello" | "Hi"
//   name ::= [A-Z] [a-z]{1,20}
// Literals in double or single quotes, character classes, `.` (any character), groups, | and the
// repeats * + ? {m} {m,} {m,n}. Escapes: \n \r \t \\ \" \xHH \uHHHH \UHHHHHHHH.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

// The grammar that derives the texts of rule `root`. An INVALID_ARGUMENT error names line and
// column.
absl::StatusOr<Grammar> ParseGbnf(std::string_view text, Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
