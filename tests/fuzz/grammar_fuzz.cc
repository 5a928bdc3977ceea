// Grammars, expressions and schemas come with requests: whatever bytes they are, compiling them
// ends in a grammar or an error, and a grammar gives masks that agree with what it accepts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/regex.h"

namespace {

using namespace heddle::engine::grammar;  // one short file
using heddle::engine::TokenId;

std::shared_ptr<const Vocabulary> Bytes() {
  static const auto kVocabulary = [] {
    std::vector<std::string> texts = {""};
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* more : {"ab", "\"a", "\",\"", "}}", "\xC3\xA9x", "aaaaaaaa", "1.0", "-1"}) {
      texts.emplace_back(more);
    }
    return std::make_shared<const Vocabulary>(static_cast<int32_t>(texts.size()), [&](TokenId id) {
      return std::string_view(texts[static_cast<size_t>(id)]);
    });
  }();
  return kVocabulary;
}

absl::StatusOr<Grammar> Parse(uint8_t kind, std::string_view text) {
  if (kind % 4 == 0) return ParseGbnf(text);
  if (kind % 4 == 3) return ParseJsonSchema(text, {});
  auto machine = ParseRegex(text, kind % 4 == 1 ? RegexMatch::kWhole : RegexMatch::kSearch);
  if (!machine.ok()) return machine.status();
  Grammar grammar;
  grammar.root = grammar.AddRule("root", grammar.Machine(*std::move(machine)));
  return grammar;
}

}  // namespace

// The first byte chooses the language, the second how the text goes on.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto grammar = Parse(data[0], text);
  if (!grammar.ok()) return 0;
  auto automaton = Compile(*grammar);
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
    if (!matcher.Accept(allowed[(random >> 8) % allowed.size()])) std::abort();
  }
  return 0;
}
