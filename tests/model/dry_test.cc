// DRY: llama.cpp's published cases, breakers, and a model that compares every place with the end.
#include "engine/sample/dry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

using Tokens = std::vector<TokenId>;
using Charges = std::map<TokenId, float>;

SamplingParams Params(float multiplier, float base, int32_t allowed_length, int32_t last_n = -1) {
  SamplingParams params;
  params.dry_multiplier = multiplier;
  params.dry_base = base;
  params.dry_allowed_length = allowed_length;
  params.dry_penalty_last_n = last_n;
  return params;
}

Charges ChargesOf(const Dry& dry) {
  std::vector<kernels::LogitEdit> edits;
  dry.AddEdits(&edits);
  Charges charges;
  for (const kernels::LogitEdit& edit : edits) {
    CHECK(edit.scale_div == 1.0f);
    CHECK(charges.emplace(edit.token, -edit.add).second);
  }
  return charges;
}

Charges ChargesOf(const SamplingParams& params, const Tokens& text) {
  return ChargesOf(Dry(params, text));
}

// The longest match for each token by comparing, place by place; where a breaker ends by looking
// for the latest that begins in the window, and the longest of those.
std::map<TokenId, int> ByComparing(const SamplingParams& params, const Tokens& text) {
  const int n = static_cast<int>(text.size());
  const int last_n = params.dry_penalty_last_n;
  const int begin = last_n < 0 ? 0 : std::max(0, n - last_n);
  int unbroken = n - begin;
  for (int head = n - 1; head >= begin && unbroken == n - begin; --head) {
    int longest = -1;
    for (const DryBreaker& breaker : params.dry_breakers) {
      const int size = static_cast<int>(breaker.tail.size());
      const bool is_head =
          std::find(breaker.heads.begin(), breaker.heads.end(), text[head]) != breaker.heads.end();
      if (is_head && head + size < n &&
          std::equal(breaker.tail.begin(), breaker.tail.end(), text.begin() + head + 1)) {
        longest = std::max(longest, size);
      }
    }
    if (longest >= 0) {
      unbroken = n - 1 - head - longest;
      break;
    }
  }
  std::map<TokenId, int> lengths;
  for (int end = begin; end + 1 < n; ++end) {
    int length = 0;
    while (end - length >= begin && text[end - length] == text[n - 1 - length]) ++length;
    length = std::min(length, unbroken);
    if (length < params.dry_allowed_length) continue;
    const TokenId next = text[end + 1];
    const bool breaks = std::any_of(params.dry_breakers.begin(), params.dry_breakers.end(),
                                    [next](const DryBreaker& breaker) {
                                      return breaker.tail.empty() && breaker.HasHead(next);
                                    });
    if (!breaks) lengths[next] = std::max(lengths[next], length);
  }
  return lengths;
}

void CheckByComparing(const Dry& dry, const SamplingParams& params, const Tokens& text) {
  const Charges charges = ChargesOf(dry);
  const std::map<TokenId, int> lengths = ByComparing(params, text);
  CHECK(charges.size() == lengths.size());
  for (const auto& [token, length] : lengths) {
    INFO("token " << token << " after " << length);
    REQUIRE(charges.contains(token));
    const int over = length - params.dry_allowed_length;
    CHECK(charges.at(token) ==
          Approx(params.dry_multiplier * std::pow(double{params.dry_base}, over)));
  }
}

// From its tests/test-sampling.cpp: there, 0.25 each becomes 0.296923 and 0.109232, whose
// logarithms are 1.0 apart, and 0.2 each becomes 0.241818 and 0.032727, 2.0 apart.
TEST_CASE("DRY charges what llama.cpp charges in its published cases", "[unit]") {
  CHECK(ChargesOf(Params(1.0f, 1.1f, 2, 4), {0, 1}).empty());
  CHECK(ChargesOf(Params(1.0f, 1.1f, 2, 5), {0, 1, 2, 0, 1}) == Charges{{2, 1.0f}});
  SamplingParams broken = Params(1.0f, 1.1f, 2, 6);
  broken.dry_breakers = {{{3}, {}}};
  CHECK(ChargesOf(broken, {0, 1, 3, 4, 0, 1}).empty());
  CHECK(ChargesOf(Params(2.0f, 1.1f, 2, 5), {0, 1, 2, 0, 1}) == Charges{{2, 2.0f}});
  CHECK(ChargesOf(Params(1.0f, 1.1f, 4, 7), {0, 1, 2, 3, 4, 0, 1}).empty());
}

// a b c c b c y a b c: after "a b c" came c, after "c" b, after "b c" y.
TEST_CASE("Each token pays for the longest repetition that it would go on with", "[unit]") {
  const Tokens text = {1, 2, 3, 3, 2, 3, 4, 1, 2, 3};
  CHECK(ChargesOf(Params(1.0f, 2.0f, 1), text) == Charges{{3, 4.0f}, {2, 1.0f}, {4, 2.0f}});
  CHECK(ChargesOf(Params(0.5f, 2.0f, 2), text) == Charges{{3, 1.0f}, {4, 0.5f}});
  // Nine tokens are looked at: "a b c" is no longer whole at the beginning.
  CHECK(ChargesOf(Params(1.0f, 2.0f, 1, 9), text) == Charges{{3, 2.0f}, {2, 1.0f}, {4, 2.0f}});
  CHECK(ChargesOf(Params(1.0f, 2.0f, 1, 4), text).empty());
}

TEST_CASE("What was generated counts as what the prompt holds", "[unit]") {
  const Tokens text = {1, 2, 3, 3, 2, 3, 4, 1, 2, 3, 3, 2};
  for (size_t prompt = 0; prompt <= text.size(); ++prompt) {
    INFO("prompt of " << prompt);
    const SamplingParams params = Params(1.0f, 1.5f, 1);
    Dry dry(params, std::span(text).first(prompt));
    for (size_t i = prompt; i < text.size(); ++i) dry.Append(text[i]);
    CHECK(ChargesOf(dry) == ChargesOf(params, text));
  }
}

TEST_CASE("A breaker ends the repetition behind it, and is never charged itself", "[unit]") {
  SamplingParams params = Params(1.0f, 2.0f, 1);
  const Tokens text = {1, 9, 2, 3, 5, 1, 9, 2, 3};
  CHECK(ChargesOf(params, text) == Charges{{5, 8.0f}});
  params.dry_breakers = {{{9}, {}}};
  CHECK(ChargesOf(params, text) == Charges{{5, 2.0f}});
  CHECK(ChargesOf(params, {2, 9, 2}).empty());  // 9 would go on
  // A breaker of several tokens: both 9 and 7 begin one that goes on with 2.
  params.dry_breakers = {{{7, 9}, {2}}};
  CHECK(ChargesOf(params, text) == Charges{{5, 1.0f}});
  CHECK(ChargesOf(params, {2, 9, 2}).empty());  // nothing stands behind the breaker
  CHECK(ChargesOf(params, {9, 3, 2, 9, 3}) == Charges{{2, 2.0f}});
  params.dry_breakers = {{{7, 9}, {2, 3}}, {{9}, {2}}};  // the longer of two that begin together
  CHECK(ChargesOf(params, text).empty());
}

TEST_CASE("Charges stay finite, however long the repetition", "[unit]") {
  const Tokens same(3000, 7);
  const Charges charges = ChargesOf(Params(100.0f, 100.0f, 1), same);
  REQUIRE(charges.size() == 1);
  CHECK(std::isfinite(charges.at(7)));
  CHECK(charges.at(7) > 1e37f);
  CHECK(ChargesOf(Params(3.0f, 1.0f, 1), same) == Charges{{7, 3.0f}});
}

TEST_CASE("On random texts, charges are those of comparing every place with the end", "[unit]") {
  std::mt19937 random(20);
  const auto below = [&random](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    const int alphabet = 1 + below(4);
    SamplingParams params = Params(1.0f, 1.25f, 1 + below(4), below(3) == 0 ? 1 + below(40) : -1);
    for (int i = below(3); i > 0; --i) {
      DryBreaker breaker{{below(alphabet)}, {}};
      if (below(2) == 0) breaker.heads.push_back(breaker.heads[0] + 1);
      for (int j = below(3); j > 0; --j) breaker.tail.push_back(below(alphabet));
      params.dry_breakers.push_back(breaker);
    }
    Tokens text(static_cast<size_t>(below(60)));
    for (TokenId& token : text) token = below(alphabet);
    Dry dry(params, text);
    CheckByComparing(dry, params, text);
    for (int i = 0; i < 30; ++i) {
      // Half of the time the text repeats what stands before it.
      const size_t back = text.size() < 7 ? 0 : static_cast<size_t>(4 + below(3));
      text.push_back(back > 0 && below(2) == 0 ? text[text.size() - back] : below(alphabet));
      dry.Append(text.back());
      CheckByComparing(dry, params, text);
    }
  }
}

}  // namespace
}  // namespace heddle::engine
