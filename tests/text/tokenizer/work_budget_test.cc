// Rules of a hostile tokenizer, and texts that are hostile to an honest one, against what encoding
// may cost: texts stay within WorkBudget's bytes, and calls end, which without bounds take hours.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/text/json_node.h"
#include "engine/text/loaders.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/unicode.h"
#include "engine/text/work_budget.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::text {
namespace {

std::string Repeat(std::string_view part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text.append(part);
  return text;
}

TEST_CASE("Rules that double a text time and again are stopped before the memory is taken",
          "[text][unit]") {
  std::vector<std::unique_ptr<Normalizer>> outer;
  for (int i = 0; i < 40; ++i) {  // nested, as a file may nest them: 2^40
    std::vector<std::unique_ptr<Normalizer>> inner;
    inner.push_back(NewReplace("a", "aa"));
    outer.push_back(NewNormalizerSequence(std::move(inner)));
  }
  const auto doubles = NewNormalizerSequence(std::move(outer));
  std::string text = Repeat("a", 1000);
  CHECK(absl::IsResourceExhausted(doubles->Apply(&text)));
}

TEST_CASE("One rule with a long replacement is stopped, too", "[text][unit]") {
  const std::string megabyte(1 << 20, 'x');
  std::string text = Repeat("a", 1 << 20);  // a terabyte
  SECTION("of a text") {
    CHECK(absl::IsResourceExhausted(NewReplace("a", megabyte)->Apply(&text)));
  }
  SECTION("of matches") {
    auto regex = Regex::Compile("a(?=a)");
    REQUIRE(regex.ok());
    CHECK(absl::IsResourceExhausted(NewReplaceMatches(*std::move(regex), megabyte)->Apply(&text)));
  }
}

// A charsmap (charsmap.h) with one rule, from "a" to `to`.
std::string CharsmapBlob(const std::string& to) {
  std::vector<uint32_t> units(512, 0);
  units[0] = 0x100 << 10;                       // the root's children lie at 0x100 ^ byte
  units[0x100 ^ 'a'] = 'a' | 1 << 8 | 1 << 10;  // a leaf follows, 1 further (by exclusive or)
  units[(0x100 ^ 'a') ^ 1] = 0x80000000u;       // its value: replacements begin there
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string blob(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + to + '\0';
}

TEST_CASE("A precompiled map may not make a text longer without end", "[text][unit]") {
  for (const size_t size : {size_t{3}, size_t{1} << 20}) {
    auto map = Charsmap::Parse(CharsmapBlob(std::string(size, 'x')));
    REQUIRE(map.ok());
    REQUIRE(map->Longest("ab").has_value());
    const bool fits = size == 3;
    std::string text = Repeat("a", 100'000);
    SentencePieceRules rules;
    rules.charsmap = *map;
    const absl::Status sentencepiece = NewSentencePieceNormalizer(rules)->Apply(&text);
    CHECK(sentencepiece.ok() == fits);
    text = Repeat("a", 100'000);
    CHECK(NewPrecompiled(*map)->Apply(&text).ok() == fits);
    if (fits) CHECK(text == Repeat("x", 300'000));
  }
}

TEST_CASE("A precompiled map that goes in circles is left after some bytes", "[text][unit]") {
  // Every node leads to itself: without a bound each place of the text is searched to its end.
  std::vector<uint32_t> units(512, 0);
  units[0] = 0x100 << 10;
  units[0x100 ^ 'a'] = 'a' | uint32_t{'a'} << 10;  // exclusive or with 'a' and 'a' again: itself
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string blob(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  auto map = Charsmap::Parse(blob);
  REQUIRE(map.ok());
  SentencePieceRules rules;
  rules.charsmap = *std::move(map);
  std::string text = Repeat("a", 1 << 20);
  const absl::Status status = NewSentencePieceNormalizer(std::move(rules))->Apply(&text);
  CHECK((status.ok() || absl::IsResourceExhausted(status)));
}

TEST_CASE("A pattern that searches all of the text at each place runs out of time",
          "[text][unit]") {
  // No backtracking, so that PCRE2's own limits never hold: some 10^12 steps.
  auto regex = Regex::Compile("[^x]*y");
  REQUIRE(regex.ok());
  const auto split = NewRegexSplit(*std::move(regex), SplitBehavior::kIsolated, false);
  const std::string text = Repeat("a", 1 << 20);
  WorkBudget budget(1 << 30, /*cpu_seconds=*/0.05);
  const auto drop = [](Piece) { return absl::OkStatus(); };
  CHECK(absl::IsResourceExhausted(split->Split({text, true, &budget}, drop)));
}

TEST_CASE("A pattern that backtracks without end is given up at once", "[text][unit]") {
  auto regex = Regex::Compile("(?:a+)+$b");
  REQUIRE(regex.ok());
  const absl::Status status =
      regex->ForEachMatch(Repeat("a", 60), [](size_t, size_t) { return absl::OkStatus(); });
  CHECK((absl::IsResourceExhausted(status) || status.ok()));  // 2^60 steps otherwise
}

TEST_CASE("Matches far apart are found, wherever they begin", "[text][unit]") {
  auto regex = Regex::Compile("(?<=é)x+(?=y)");
  REQUIRE(regex.ok());
  for (size_t before = 0; before < 300; before += 7) {
    const std::string text = Repeat("ü", before) + "xxéxxy" + Repeat("é", before) + "xy";
    std::vector<size_t> begins;
    REQUIRE(regex
                ->ForEachMatch(text,
                               [&](size_t begin, size_t) {
                                 begins.push_back(begin);
                                 return absl::OkStatus();
                               })
                .ok());
    std::vector<size_t> expected = {2 * before + 4};
    if (before > 0) expected.push_back(4 * before + 7);
    CHECK(begins == expected);
  }
}

// Marks in an order that canonical ordering has to reverse: what a client may send to any model
// whose tokenizer normalises. U+0301 is of class 230, U+0316 of class 220 (UnicodeData.txt).
TEST_CASE("A million marks are brought into order in no more than moments", "[text][unit]") {
  const size_t count = 500'000;
  const std::string marks = Repeat("\u0301", count) + Repeat("\u0316", count);
  const std::string ordered = Repeat("\u0316", count) + Repeat("\u0301", count);
  CHECK(Normalize(std::string("a").append(marks), NormalForm::kNfd) ==
        std::string("a").append(ordered));
  // In NFC the first U+0301 is composed with the letter: nothing of its class is in between.
  const std::string rest = Repeat("\u0316", count) + Repeat("\u0301", count - 1);
  CHECK(Normalize(std::string("a").append(marks), NormalForm::kNfc) ==
        std::string("\u00E1").append(rest));
}

TEST_CASE("Files with too many or too greedy steps are refused", "[text][unit]") {
  const auto parse = [](const std::string& text, auto parser) {
    const nlohmann::json json = nlohmann::json::parse(text);
    return parser(JsonNode(&json, "tokenizer.json")).status();
  };
  const auto list = [](std::string_view step, size_t count) {
    return Repeat(std::string(step).append(","), count - 1).append(step);
  };
  std::string many = R"({"type":"Sequence","normalizers":[)";
  many.append(list(R"({"type":"NFC"})", 100)).append("]}");
  CHECK_FALSE(parse(many, ParseNormalizer).ok());
  std::string wide = R"({"type":"Metaspace","replacement":")";
  wide.append(Repeat("_", 100)).append("\"}");
  CHECK_FALSE(parse(wide, ParsePreTokenizer).ok());
  std::string doubles = R"({"type":"Sequence","decoders":[)";
  doubles.append(list(R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})", 30))
      .append("]}");
  CHECK_FALSE(parse(doubles, ParseDecoder).ok());
}

}  // namespace
}  // namespace heddle::engine::text
