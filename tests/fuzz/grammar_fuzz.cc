// Grammars, expressions and schemas come with requests: whatever bytes they are, compiling them
// ends in a grammar or an error, and a grammar gives masks that agree with what it accepts. All of
// it within bounds of work: to go past one without a word is a finding, even where it would end.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/lark/lark.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/json_schema.h"

namespace {

using namespace heddle::engine::grammar;  // one short file
using heddle::engine::TokenId;

// A tokenizer: takes the longest token that fits, again and again.
std::vector<TokenId> LongestFirst(const std::vector<std::string>& texts, std::string_view text) {
  std::vector<TokenId> tokens;
  while (!text.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < texts.size(); ++i) {
      if (text.starts_with(texts[i]) && texts[i].size() > texts[best].size()) best = i;
    }
    tokens.push_back(static_cast<TokenId>(best));
    text.remove_prefix(texts[best].size());
  }
  return tokens;
}

std::shared_ptr<const Vocabulary> Bytes() {
  static const auto kVocabulary = [] {
    std::vector<std::string> texts = {""};
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* more : {"ab", "\"a", "\",\"", "}}", "\xC3\xA9x", "aaaaaaaa", "1.0", "-1"}) {
      texts.emplace_back(more);
    }
    return std::make_shared<const Vocabulary>(
        static_cast<int32_t>(texts.size()),
        [&](TokenId id) { return std::string_view(texts[static_cast<size_t>(id)]); },
        [texts](std::string_view text) { return LongestFirst(texts, text); });
  }();
  return kVocabulary;
}

// Work that a loop may do between two looks at the budget: the edges of one state, or a set of its
// size.
constexpr int64_t kMaxBeyond = 8'000'000;

void CheckWork(const Budget& budget) {
  if (budget.spent() > Budget::kMaxUnits + kMaxBeyond) std::abort();
}

absl::StatusOr<Grammar> Parse(uint8_t kind, std::string_view text, Budget* budget) {
  if (kind % 4 == 0 && kind < 64) return ParseGbnf(text, budget);
  if (kind % 4 == 0 && kind < 128) return ParseLark(text, budget);
  if (kind % 4 == 0) {
    auto grammar = ParseLark(text, budget);
    if (!grammar.ok()) return grammar.status();
    return WithinJsonString(*std::move(grammar), budget);
  }
  if (kind % 4 == 3) {
    JsonOptions options;
    if (kind >= 64) options.whitespace = JsonWhitespace::kNone;
    if (kind >= 128) options.form = {"<", ">\n", "\n</>", "", /*raw_strings=*/kind >= 192};
    return ParseJsonSchema(text, options, budget);
  }
  auto machine = ParseRegex(text, kind % 4 == 1 ? RegexMatch::kWhole : RegexMatch::kSearch, budget);
  if (!machine.ok()) return machine.status();
  Grammar grammar;
  grammar.root = grammar.AddRule("root", grammar.Machine(*std::move(machine)));
  return grammar;
}

}  // namespace

// The first byte chooses the language, the second how the text continues.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  Budget budget;
  const auto grammar = Parse(data[0], text, &budget);
  CheckWork(budget);
  if (!grammar.ok()) return 0;
  auto automaton = Compile(*grammar, &budget);
  CheckWork(budget);
  if (!automaton.ok()) return 0;
  auto compiled =
      std::make_shared<CompiledGrammar>(*std::move(automaton), Bytes(), std::vector<TokenId>{0});
  Matcher matcher(compiled);
  uint32_t random = data[1];
  for (int i = 0; i < 20 && !matcher.ended(); ++i) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) return 0;
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < compiled->vocabulary().size(); ++id) {
      if (IsAllowed(**mask, id)) allowed.push_back(id);
    }
    random = random * 1664525 + 1013904223;
    const std::span<const TokenId> span = matcher.Forced();
    const std::vector<TokenId> forced(span.begin(), span.end());
    if (!forced.empty() && !IsAllowed(**mask, forced.front())) std::abort();
    if (!forced.empty() && (random >> 20) % 2 == 0) {
      for (TokenId token : forced) {
        if (matcher.Accept(token)) continue;
        if (matcher.failure().ok()) std::abort();
        return 0;
      }
      continue;
    }
    // Refused although allowed: only where the bound of work was met.
    if (!matcher.Accept(allowed[(random >> 8) % allowed.size()])) {
      if (matcher.failure().ok()) std::abort();
      return 0;
    }
  }
  return 0;
}
