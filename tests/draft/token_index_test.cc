#include "engine/draft/token_index.h"

#include <algorithm>
#include <map>
#include <random>

#include "catch2/catch.hpp"
#include "engine/draft/history_index.h"

namespace heddle::engine {
namespace {

// The longest earlier occurrences of the end of `suffix` in `text`, by comparison everywhere.
// Tokens before `begin` are forgotten: a growing ring holds less than the whole text for a while.
TokenIndex::Occurrences Naive(const std::vector<TokenId>& text, int64_t begin,
                              const std::vector<TokenId>& suffix, int32_t smallest,
                              int32_t largest) {
  TokenIndex::Occurrences found;
  for (size_t end = text.size(); end-- > static_cast<size_t>(begin);) {
    const size_t limit = std::min(end - static_cast<size_t>(begin), suffix.size());
    int32_t length = 0;
    while (length < largest && static_cast<size_t>(length) < limit &&
           text[end - 1 - static_cast<size_t>(length)] ==
               suffix[suffix.size() - 1 - static_cast<size_t>(length)]) {
      ++length;
    }
    if (length < smallest || length < found.length || text[end] == kNoToken) continue;
    if (length > found.length) found.ends.clear();
    found.length = length;
    found.ends.push_back(static_cast<int64_t>(end));
  }
  return found;
}

TEST_CASE("The index finds what a comparison everywhere finds", "[unit]") {
  const uint32_t seed = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  CAPTURE(seed);
  std::mt19937 random(seed);
  TokenIndex::Options options;
  options.orders = seed % 2 == 0 ? std::vector<int32_t>{2, 4, 10} : std::vector<int32_t>{1, 3};
  options.max_match = 12;
  options.max_candidates = 1 << 20;
  const int alphabet = 2 + static_cast<int>(seed);
  TokenIndex index(options, 0);
  std::vector<TokenId> text;
  for (int i = 0; i < 3000; ++i) {
    // Texts are separated; kNoToken is never matched.
    const TokenId token =
        random() % 200 == 0 ? kNoToken : static_cast<TokenId>(random() % alphabet);
    text.push_back(token);
    index.Append(token);
    if (i % 7 != 0 || token == kNoToken) continue;
    const auto begin =
        std::find(text.rbegin(), text.rend(), kNoToken).base();  // of the text of this token
    const std::vector<TokenId> suffix(begin, text.end());
    const TokenIndex::Occurrences naive =
        Naive(text, index.begin(), suffix, options.orders.front(), options.max_match);
    TokenIndex::Occurrences found;
    index.Find(suffix, &found);
    REQUIRE(found.length == naive.length);
    REQUIRE(found.ends == naive.ends);
  }
}

TEST_CASE("A full ring forgets the oldest tokens and keeps finding the others", "[unit]") {
  TokenIndex::Options options;
  options.max_tokens = 2048;
  options.max_candidates = 1 << 20;
  TokenIndex index(options, 0);
  std::mt19937 random(9);
  std::vector<TokenId> text;
  for (int i = 0; i < 20000; ++i) {
    text.push_back(static_cast<TokenId>(random() % 6));
    index.Append(text.back());
    if (i % 97 != 0 || i < 4096) continue;
    CHECK(index.size() == 2048);
    const std::vector<TokenId> suffix(text.end() - 32, text.end());
    const TokenIndex::Occurrences naive = Naive(text, index.begin(), suffix, 2, 32);
    TokenIndex::Occurrences found;
    index.Find(suffix, &found);
    REQUIRE(found.length == naive.length);
    REQUIRE(found.ends == naive.ends);
  }
  CHECK(index.bytes() == 2048 * TokenIndex::BytesPerToken(options));
}

// The counts of a suffix tree: of all places where the longest match goes on, how many go on how.
TEST_CASE("A continuation has the counts of a suffix tree", "[unit]") {
  std::mt19937 random(11);
  TokenIndex::Options options;
  options.max_candidates = 1 << 20;
  std::vector<TokenId> text;
  HistoryIndex history(options, {});
  for (int i = 0; i < 2000; ++i) {
    const TokenId token = random() % 4 == 0 ? static_cast<TokenId>(random() % 5) : i % 5;
    text.push_back(token);
    history.Append({&token, 1});
    if (i % 11 != 0) continue;
    TokenIndex::Occurrences found;
    history.Find(&found);
    std::vector<TokenId> tokens;
    std::vector<float> shares;
    VoteContinuation(history.index(), found, 5, &tokens, &shares);
    std::vector<int64_t> places =
        Naive(text, history.index().begin(),
              {text.end() - std::min<ptrdiff_t>(i + 1, 32), text.end()}, 2, 32)
            .ends;
    CHECK(tokens.empty() == places.empty());
    for (size_t depth = 0; depth < tokens.size(); ++depth) {
      std::map<TokenId, int> counts;
      for (int64_t place : places) {
        if (place < static_cast<int64_t>(text.size())) ++counts[text[static_cast<size_t>(place)]];
      }
      int most = 0;
      for (const auto& [next, count] : counts) most = std::max(most, count);
      CHECK(counts[tokens[depth]] == most);
      CHECK(shares[depth] ==
            Approx(static_cast<double>(most) / static_cast<double>(places.size())));
      std::erase_if(places, [&](int64_t place) {
        return place >= static_cast<int64_t>(text.size()) ||
               text[static_cast<size_t>(place)] != tokens[depth];
      });
      for (int64_t& place : places) ++place;
    }
  }
}

TEST_CASE("A vote counts by hand: two of three, then one of two", "[unit]") {
  // "1 2" is followed by 3 4, by 3 5 and by 6.
  const std::vector<TokenId> text = {1, 2, 3, 4, 9, 1, 2, 6, 8, 1, 2, 3, 5, 7, 1, 2};
  HistoryIndex history(TokenIndex::Options{}, text);
  TokenIndex::Occurrences found;
  history.Find(&found);
  CHECK(found.length == 2);
  CHECK(found.ends == std::vector<int64_t>{11, 7, 2});
  std::vector<TokenId> tokens;
  std::vector<float> shares;
  VoteContinuation(history.index(), found, 3, &tokens, &shares);
  CHECK(tokens == std::vector<TokenId>{3, 5, 7});  // of equal shares the latest
  CHECK(shares[0] == Approx(2.0 / 3));
  CHECK(shares[1] == Approx(0.5));
  CHECK(shares[2] == Approx(1.0));
}

}  // namespace
}  // namespace heddle::engine
