// Vocabularies and enumerations that the tests of engine/grammar share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/state_machine.h"

namespace heddle::test {

// Token 0 ends a text; tokens 1 to 256 are the bytes 0 to 255; then `more`, in order.
std::shared_ptr<const engine::grammar::Vocabulary> MakeVocabulary(
    std::vector<std::string> more = {});

inline constexpr engine::TokenId kEndToken = 0;
inline engine::TokenId ByteToken(char byte) { return 1 + static_cast<unsigned char>(byte); }

// Aborts with the message if the grammar does not compile.
std::shared_ptr<engine::grammar::CompiledGrammar> CompileOrDie(
    const engine::grammar::Grammar& grammar,
    std::shared_ptr<const engine::grammar::Vocabulary> vocabulary = MakeVocabulary());
std::shared_ptr<engine::grammar::CompiledGrammar> CompileGbnf(
    std::string_view text,
    std::shared_ptr<const engine::grammar::Vocabulary> vocabulary = MakeVocabulary());

// A grammar that derives what the machine accepts.
engine::grammar::Grammar GrammarOf(engine::grammar::StateMachine machine);

bool Matches(const std::shared_ptr<engine::grammar::CompiledGrammar>& grammar,
             std::string_view text);

// All texts over `alphabet` of at most `max_length` bytes, shorter ones first.
std::vector<std::string> AllTexts(std::string_view alphabet, size_t max_length);

// Checks for all texts over `alphabet` that the grammar derives exactly those of `is_member`, and
// that a beginning is refused only if no member continues it within `max_length`; beginnings up to
// `max_length - slack` that are taken must have such a member.
void CheckLanguage(const std::shared_ptr<engine::grammar::CompiledGrammar>& grammar,
                   std::string_view alphabet, size_t max_length, size_t slack,
                   const std::function<bool(std::string_view)>& is_member);

// Checks the mask against what a copy of the matcher says of every single token.
void CheckMask(engine::grammar::Matcher matcher);

}  // namespace heddle::test
