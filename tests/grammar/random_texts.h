// Texts as a model of random logits would write them under a grammar's masks.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"

namespace heddle::test {

// Bytes, and tokens of several characters that JSON's texts have.
std::shared_ptr<const engine::grammar::Vocabulary> JsonVocabulary();

// Takes any allowed token, and after `patience` tokens preferably one that closes. An error if a
// mask has none or the text does not end.
absl::StatusOr<std::string> RandomText(
    const std::shared_ptr<engine::grammar::CompiledGrammar>& grammar, std::mt19937* random,
    int patience = 120);

}  // namespace heddle::test
