// The tokenizers of tests/golden/tokenizers, by file name.
#pragma once

#include <memory>

#include "catch2/catch.hpp"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"

namespace heddle::engine::text {

// Fails the test if it cannot be read.
inline std::unique_ptr<Tokenizer> GoldenTokenizer(const char* name) {
  auto tokenizer = LoadTokenizer(test::SourceDir() / "tests/golden/tokenizers" / name);
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace heddle::engine::text
