#include "tests/grammar/testing.h"

#include <set>
#include <utility>

#include "base/check.h"
#include "catch2/catch.hpp"
#include "engine/grammar/gbnf.h"

namespace heddle::test {

using engine::TokenId;
using namespace engine::grammar;  // the tests' own names are few

std::shared_ptr<CompiledGrammar> CompileOrDie(const Grammar& grammar,
                                              std::shared_ptr<const Vocabulary> vocabulary) {
  absl::StatusOr<Automaton> automaton = Compile(grammar);
  HEDDLE_CHECK(automaton.ok(), std::string(automaton.status().message()));
  return std::make_shared<CompiledGrammar>(*std::move(automaton), std::move(vocabulary),
                                           std::vector<TokenId>{kEndToken});
}

std::shared_ptr<CompiledGrammar> CompileGbnf(std::string_view text,
                                             std::shared_ptr<const Vocabulary> vocabulary) {
  absl::StatusOr<Grammar> grammar = ParseGbnf(text);
  HEDDLE_CHECK(grammar.ok(), std::string(grammar.status().message()));
  return CompileOrDie(*grammar, std::move(vocabulary));
}

Grammar GrammarOf(StateMachine machine) {
  Grammar grammar;
  grammar.root = grammar.AddRule("root", grammar.Machine(std::move(machine)));
  return grammar;
}

bool Matches(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.AcceptText(text) && matcher.CanEnd();
}

std::vector<std::string> AllTexts(std::string_view alphabet, size_t max_length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == max_length) break;
    for (char c : alphabet) texts.push_back(texts[i] + c);
  }
  return texts;
}

void CheckLanguage(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view alphabet,
                   size_t max_length, size_t slack,
                   const std::function<bool(std::string_view)>& is_member) {
  const std::vector<std::string> texts = AllTexts(alphabet, max_length);
  std::set<std::string> beginnings;
  for (const std::string& text : texts) {
    if (!is_member(text)) continue;
    for (size_t n = 0; n <= text.size(); ++n) beginnings.insert(text.substr(0, n));
  }
  int wrong = 0;
  for (const std::string& text : texts) {
    Matcher matcher(grammar);
    const bool taken = matcher.AcceptText(text);
    const bool matched = taken && matcher.CanEnd();
    const bool continues = beginnings.contains(text);
    const bool too_many = taken && !continues && text.size() + slack <= max_length;
    if (matched != is_member(text) || (continues && !taken) || too_many) {
      if (++wrong > 3) return;
      INFO("text \"" << text << "\" matched " << matched << " taken " << taken);
      CHECK(matched == is_member(text));
      CHECK(taken == continues);
    }
  }
  CHECK(wrong == 0);
}

void CheckMask(Matcher matcher) {
  const auto mask = matcher.Mask();
  REQUIRE(mask.ok());
  const Vocabulary& vocabulary = matcher.grammar().vocabulary();
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    Matcher copy = matcher;
    const bool accepted = copy.Accept(id);
    if (accepted == IsAllowed(**mask, id)) continue;
    INFO("token " << id << " \"" << vocabulary.text(id) << "\"");
    CHECK(IsAllowed(**mask, id) == accepted);
  }
}

}  // namespace heddle::test
