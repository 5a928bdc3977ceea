// Tokens of real tokenizers that are the same, and what stands for those that are not.
#include "engine/model/common_tokens.h"

#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "catch2/catch.hpp"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

std::unique_ptr<text::Tokenizer> Load(std::string_view name) {
  auto loaded = text::LoadTokenizer(test::SharedDataOrSkip("tokenizers_hf") / name);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return *std::move(loaded);
}

using Texts = std::initializer_list<std::string_view>;

// A tokenizer of these pieces, from 1 on, and of control tokens behind them; <unk> is token 0.
std::unique_ptr<text::Tokenizer> Pieces(Texts pieces, Texts controls = {},
                                        std::string_view eos = {}) {
  test::TempDir folder;
  std::string vocab = R"(["<unk>", 0])";
  for (const std::string_view piece : pieces) vocab += ", [\"" + std::string(piece) + "\", -1]";
  std::string added;
  size_t id = 1 + pieces.size();
  for (const std::string_view control : controls) {
    added += (added.empty() ? "" : ", ") + std::string(R"({"special": true, "id": )") +
             std::to_string(id++) + R"(, "content": ")" + std::string(control) + "\"}";
  }
  std::ofstream(folder.path() / "tokenizer.json")
      << R"({"version": "1.0", "decoder": {"type": "ByteFallback"}, "added_tokens": [)" << added
      << R"(], "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [)"
      << vocab << "]}}";
  if (!eos.empty()) {
    std::ofstream(folder.path() / "tokenizer_config.json") << R"({"eos_token": ")" << eos << "\"}";
  }
  auto loaded = text::LoadTokenizer(folder.path());
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return *std::move(loaded);
}

CommonTokens Match(const text::Tokenizer& draft, const text::Tokenizer& target) {
  return FindCommonTokens({draft, draft.vocab_size()}, {target, target.vocab_size()});
}

bool CanGuess(const CommonTokens& common, TokenId id) {
  return (common.guessable[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

TokenId ReadAs(const CommonTokens& common, TokenId id) {
  return common.draft_ids.at(static_cast<size_t>(id));
}

TEST_CASE("Tokens of real tokenizers are the same if their bytes are", "[golden]") {
  const std::string draft_name = GENERATE("qwen2.5", "gpt2", "phi-3-mini");
  const std::string target_name = GENERATE("qwen2.5", "gpt2", "phi-3-mini");
  INFO(draft_name << " for " << target_name);
  const auto draft = Load(draft_name);
  const auto target = Load(target_name);
  const CommonTokens common = Match(*draft, *target);
  REQUIRE(common.draft_ids.size() == static_cast<size_t>(target->vocab_size()));
  std::set<TokenId> guessed_by;
  int32_t num_guessable = 0;
  for (TokenId id = 0; id < target->vocab_size(); ++id) {
    const TokenId own = ReadAs(common, id);
    if (own < 0 || own >= draft->vocab_size()) FAIL("token " << id << " is read as " << own);
    if (!CanGuess(common, id)) continue;
    ++num_guessable;
    if (!guessed_by.insert(own).second) FAIL("two tokens are guessed by " << own);
    if (target->IsSpecial(id)) continue;
    if (draft->TokenBytes(own) != target->TokenBytes(id)) {
      FAIL("token " << id << " is not " << own);
    }
  }
  CHECK(num_guessable == common.num_guessable);
  // GPT-2 has 50257 tokens, Phi-3's Llama tokenizer 32064, which a text in English mostly has in
  // common; some hundred of one tokenizer are double.
  CHECK(num_guessable > (draft_name == target_name ? 0.98 * target->vocab_size() : 15'000));
}

TEST_CASE("A word with its space is the same in SentencePiece and byte-level vocabularies",
          "[golden]") {
  const auto llama = Load("phi-3-mini");
  const auto qwen = Load("qwen2.5");
  const CommonTokens common = Match(*qwen, *llama);
  const TokenId the = llama->Find("\u2581the").value();
  CHECK(CanGuess(common, the));
  CHECK(ReadAs(common, the) == qwen->Find("\u0120the").value());
  const TokenId newline = llama->Find("<0x0A>").value();
  CHECK(CanGuess(common, newline));
  CHECK(ReadAs(common, newline) == qwen->Find("\u010a").value());
  // Half a code point.
  const TokenId part = llama->Find("<0xE2>").value();
  CHECK(CanGuess(common, part));
  CHECK(qwen->TokenBytes(ReadAs(common, part)) == "\xe2");
}

TEST_CASE("An answer ends with the draft model's own end", "[unit]") {
  const auto draft = Pieces({"a", "b"}, {"<end>", "<s>"}, "<end>");
  const auto target = Pieces({"b", "a"}, {"<turn>", "<s>", "<other>"}, "<turn>");
  const CommonTokens common = Match(*draft, *target);
  const TokenId turn = target->Find("<turn>").value();
  REQUIRE(target->eos_ids().front() == turn);
  CHECK(CanGuess(common, turn));
  CHECK(ReadAs(common, turn) == draft->Find("<end>").value());
  CHECK(CanGuess(common, target->Find("<s>").value()));
  CHECK(ReadAs(common, target->Find("<s>").value()) == draft->Find("<s>").value());
  CHECK_FALSE(CanGuess(common, target->Find("<other>").value()));
}

TEST_CASE("A token that only the model has is read as the longest that it ends with", "[unit]") {
  const auto draft = Pieces({"a", "b", "ab", "cab"});
  const auto target = Pieces({"xcab", "xab", "b", "zz", "xxxxxx"});
  const CommonTokens common = Match(*draft, *target);
  const auto read_as = [&](std::string_view text) {
    return draft->TokenText(ReadAs(common, target->Find(text).value()));
  };
  CHECK(read_as("xcab") == "cab");
  CHECK(read_as("xab") == "ab");
  CHECK(read_as("b") == "b");
  CHECK(read_as("zz") == "<unk>");
  CHECK(CanGuess(common, target->Find("b").value()));
  CHECK_FALSE(CanGuess(common, target->Find("xab").value()));
  CHECK_FALSE(CanGuess(common, target->Find("zz").value()));
}

TEST_CASE("A byte with a token of its own is guessed as that token", "[unit]") {
  const auto draft = Pieces({"<0x41>", "A"});
  const auto target = Pieces({"A", "<0x41>"});
  const CommonTokens common = Match(*draft, *target);
  const TokenId letter = target->Find("A").value();
  const TokenId byte = target->Find("<0x41>").value();
  CHECK(CanGuess(common, letter));
  CHECK_FALSE(CanGuess(common, byte));
  CHECK(ReadAs(common, letter) == draft->Find("A").value());
  CHECK(ReadAs(common, byte) == draft->Find("A").value());
}

// Files are padded, or are those of another model.
TEST_CASE("Tokens without a row in the embedding are left out", "[unit]") {
  const auto tokenizer = Pieces({"a", "b", "c"});
  const CommonTokens common =
      FindCommonTokens({*tokenizer, /*vocab=*/2}, {*tokenizer, /*vocab=*/40});
  REQUIRE(common.draft_ids.size() == 40);
  REQUIRE(common.guessable.size() == 2);
  for (const TokenId id : common.draft_ids) CHECK((id == 0 || id == 1));
  CHECK(CanGuess(common, 1));
  CHECK_FALSE(CanGuess(common, 2));
  CHECK_FALSE(CanGuess(common, 39));
  CHECK(FindCommonTokens({*tokenizer, 3}, {*tokenizer, 2}).draft_ids.size() == 2);
}

}  // namespace
}  // namespace heddle::engine
