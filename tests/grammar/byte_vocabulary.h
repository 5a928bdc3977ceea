// A vocabulary of single bytes, and schemas as constraints, for tests of the compiler.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "engine/grammar/grammar_compiler.h"
#include "tests/grammar/testing.h"

namespace heddle::test {

// kEndToken, and the bytes behind it.
inline engine::grammar::Vocabulary ByteVocabulary() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  return {257, [&bytes](engine::TokenId id) {
            return id == kEndToken ? std::string_view()
                                   : std::string_view(bytes).substr(static_cast<size_t>(id - 1), 1);
          }};
}

inline engine::grammar::Constraint SchemaConstraint(std::string text) {
  engine::grammar::Constraint constraint;
  constraint.text = std::move(text);
  return constraint;
}

}  // namespace heddle::test
