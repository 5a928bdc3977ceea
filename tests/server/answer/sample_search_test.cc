// Searches over samples: which are begun, which are cut, and which one is the answer.
#include "server/answer/sample_search.h"
#include "catch2/catch.hpp"
#include "server/answer/json_slot.h"

namespace heddle::test {
namespace {

using engine::TokenId;
using server::SampleSearch;
using server::SearchKind;
using server::SearchOptions;

std::unique_ptr<SampleSearch> Make(const SearchOptions& options) {
  auto made = SampleSearch::Make(options);
  REQUIRE(made.ok());
  return *std::move(made);
}

// Each sample has ten tokens.
void End(SampleSearch* search, size_t sample, const std::string& text) {
  std::vector<size_t> cut;
  const std::vector<TokenId> tokens(10, static_cast<TokenId>(sample));
  search->Take(sample, tokens, -1.0 - static_cast<double>(sample), &cut);
  REQUIRE(cut.empty());
  search->End(sample, text);
}

TEST_CASE("The probability of a majority is that of the posterior", "[answer]") {
  CHECK(server::ProbabilityOfMajority(0, 0) == Approx(0.5));
  CHECK(server::ProbabilityOfMajority(3, 0) == Approx(0.9375));  // 1 - 1/2^4
  CHECK(server::ProbabilityOfMajority(4, 0) == Approx(0.96875));
  CHECK(server::ProbabilityOfMajority(3, 3) == Approx(0.5));
  // 1 - (1 + 8 + 28) / 2^8: of eight tosses at most two go the other way.
  CHECK(server::ProbabilityOfMajority(5, 2) == Approx(0.85546875));
}

TEST_CASE("Self-consistency ends with the first wave that settles the vote", "[answer]") {
  const auto search = Make({.samples = 16, .wave = 4, .answer = "= (\\d+)"});
  CHECK(search->NextWave() == 4);
  search->Begin(4);
  CHECK(search->NextWave() == 0);
  for (size_t i = 0; i < 3; ++i) {
    End(search.get(), i, "1 = 2, then 3 + 4 = 7.");
    CHECK_FALSE(search->done());
  }
  End(search.get(), 3, "So 3 + 4 = 7");
  CHECK(search->done());
  CHECK(search->best() == 0);
  CHECK(search->votes_of_best() == 4);
  CHECK(search->num_finished() == 4);
  CHECK(search->saved_tokens() == 120);
}

TEST_CASE("Votes that differ take another wave, and the majority wins", "[answer]") {
  const auto search = Make({.samples = 6, .wave = 4, .answer = "\\d+"});
  search->Begin(search->NextWave());
  const char* texts[] = {"8", "none", "7", "7", "7", "8"};
  for (size_t i = 0; i < 4; ++i) End(search.get(), i, texts[i]);
  CHECK_FALSE(search->done());
  CHECK(search->NextWave() == 2);
  search->Begin(2);
  End(search.get(), 4, texts[4]);
  CHECK(search->done());  // three of the four that are left to be had
  CHECK(search->best() == 2);
  CHECK(search->votes_of_best() == 3);
}

TEST_CASE("A confidence of 1 waits until the leader cannot be caught", "[answer]") {
  const auto search = Make({.samples = 5, .wave = 5, .confidence = 1});
  search->Begin(5);
  End(search.get(), 0, " a\n");
  End(search.get(), 1, "a");
  CHECK_FALSE(search->done());
  End(search.get(), 2, "a");
  CHECK(search->done());
}

TEST_CASE("A sample that writes what another one does is cut, and votes as that one", "[answer]") {
  const auto search = Make({.samples = 4, .wave = 4, .confidence = 1, .prune_tokens = 4});
  search->Begin(4);
  std::vector<size_t> cut;
  const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 7, 8}, other = {9, 8, 7, 6, 5, 4, 3, 2};
  search->Take(0, text, -1, &cut);
  search->Take(1, other, -1, &cut);
  CHECK(cut.empty());
  search->Take(2, std::span(text).first(3), -1, &cut);
  CHECK(cut.empty());  // it is not looked at yet
  search->Take(2, std::span(text).subspan(3, 1), -1, &cut);
  CHECK(cut == std::vector<size_t>{2});
  search->End(1, "no");
  search->Take(3, other, -1, &cut);
  CHECK(cut == std::vector<size_t>{2, 3});
  CHECK(search->num_pruned() == 2);
  search->End(0, "yes");
  CHECK(search->done());
  CHECK(search->votes_of_best() == 2);
  CHECK(search->best() == 0);
}

TEST_CASE("The likeliest of n is found while the others are dropped half by half", "[answer]") {
  const auto search =
      Make({.kind = SearchKind::kBestOfN, .samples = 4, .wave = 1, .prune_tokens = 4});
  CHECK(search->NextWave() == 4);
  search->Begin(4);
  std::vector<size_t> cut;
  const std::vector<TokenId> four(4, 1);
  const double sums[] = {-4, -1, -3, -2};
  for (size_t i = 0; i < 4; ++i) search->Take(i, four, sums[i], &cut);
  CHECK(cut == std::vector<size_t>{2, 0});
  cut.clear();
  search->Take(1, four, -9, &cut);
  search->Take(3, four, -1, &cut);
  CHECK(cut == std::vector<size_t>{1});
  search->End(3, "text");
  CHECK(search->done());
  CHECK(search->best() == 3);
}

TEST_CASE("A reward of what has ended goes before likelihood", "[answer]") {
  const auto search = Make({.kind = SearchKind::kBestOfN, .samples = 3, .by_reward = true});
  search->Begin(3);
  for (const size_t sample : {2, 0, 1}) End(search.get(), sample, "text");
  REQUIRE(search->done());
  REQUIRE(search->finished() == std::vector<size_t>{0, 1, 2});
  CHECK(search->best() == 0);
  CHECK_FALSE(search->reward_of_best().has_value());
  search->SetRewards(search->finished(), std::vector<double>{-3, -0.5, -2});
  CHECK(search->best() == 1);
  CHECK(search->reward_of_best() == -0.5);
}

TEST_CASE("Without any vote the likeliest sample is the answer", "[answer]") {
  const auto search = Make({.samples = 2, .wave = 2, .answer = "\\d+"});
  search->Begin(2);
  End(search.get(), 1, "x");
  End(search.get(), 0, "y");
  CHECK(search->done());
  CHECK(search->best() == 0);
  CHECK_FALSE(SampleSearch::Make({.samples = 2, .answer = "("}).ok());
}

TEST_CASE("A place in JSON is found as RFC 6901 says", "[server][unit]") {
  // The examples of its section 5, in the document given there.
  const std::string document = R"({"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3,
                                   "g|h": 4, "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8})";
  const std::pair<const char*, const char*> cases[] = {
      {"/foo", R"(["bar","baz"])"},
      {"/foo/0", R"("bar")"},
      {"/", "0"},
      {"/a~1b", "1"},
      {"/c%d", "2"},
      {"/e^f", "3"},
      {"/g|h", "4"},
      {"/i\\j", "5"},
      {"/k\"l", "6"},
      {"/ ", "7"},
      {"/m~0n", "8"},
  };
  for (const auto& [pointer, value] : cases) {
    INFO(pointer);
    REQUIRE(server::IsJsonPointer(pointer));
    CHECK(server::JsonSlot(document, pointer).value_or("none") == value);
  }
  for (const char* pointer : {"/foo/2", "/foo/-", "/foo/00", "/foo/0/x", "/none", "/a", "//"}) {
    INFO(pointer);
    REQUIRE(server::IsJsonPointer(pointer));
    CHECK_FALSE(server::JsonSlot(document, pointer).has_value());
  }
  for (const char* pointer : {"a", "/~", "/~2", "~0"}) CHECK_FALSE(server::IsJsonPointer(pointer));
  CHECK(*server::JsonSlot(" [1, 2] ", "") == "[1,2]");
  for (const std::string& text :
       {std::string("{\"a\": 1"), std::string(100000, '['), std::string()}) {
    CHECK_FALSE(server::JsonSlot(text, "/a").has_value());
  }
}

}  // namespace
}  // namespace heddle::test
