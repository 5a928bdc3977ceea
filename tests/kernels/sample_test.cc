// Sampling on every device: edge cases with answers by hand, agreement with the reference, and the
// distribution of draws against exact probabilities.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/sample_cases.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t SampleOne(Device& device, std::vector<float> logits, const SampleRowParams& params) {
  Matrix matrix = Row(std::move(logits));
  return Sample(device, matrix, {params}).tokens[0];
}

TEST_CASE("Temperature 0 takes the largest logit, the lowest id in a tie", "[kernels][unit]") {
  SampleRowParams greedy;
  greedy.temperature = 0;
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    CHECK(SampleOne(*device, {1, 3, 2, 3}, greedy) == 1);
    CHECK(SampleOne(*device, {kNan, -1, kNan, -2}, greedy) == 1);
    CHECK(SampleOne(*device, {-kInfinity, -kInfinity, -5}, greedy) == 2);
    CHECK(SampleOne(*device, {1, kInfinity, kInfinity}, greedy) == 1);
    CHECK(SampleOne(*device, {0.5f}, greedy) == 0);
    std::vector<float> many(1000, 0.25f);
    many[777] = many[999] = 0.5f;
    CHECK(SampleOne(*device, many, greedy) == 777);
  }
}

TEST_CASE("Where nothing can be drawn the token is -1", "[kernels][unit]") {
  uint32_t none[1] = {0};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    for (float temperature : {0.0f, 1.0f}) {
      SampleRowParams params;
      params.temperature = temperature;
      CHECK(SampleOne(*device, {-kInfinity, kNan}, params) == -1);
      params.allowed = none;
      CHECK(SampleOne(*device, {1, 2}, params) == -1);
    }
  }
}

TEST_CASE("Edits and masks change what is drawn and leave the logits alone", "[kernels][unit]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.temperature = 0;
    LogitEdit bias[] = {{2, 1.0f, 5.0f}};
    params.edits = bias;
    Matrix logits = Row({1, 3, -1, 2});
    CHECK(Sample(*device, logits, {params}).tokens[0] == 2);
    CHECK(logits(0, 2) == -1.0f);
    // Repetition penalty 4 divides 3 to 0.75, and multiplies -1 to -4.
    LogitEdit penalty[] = {{1, 4.0f, 0.0f}, {3, 4.0f, 0.0f}, {0, 4.0f, 0.0f}};
    params.edits = penalty;
    CHECK(SampleOne(*device, {1, 3, 0.6f, 2}, params) == 1);
    CHECK(SampleOne(*device, {1, 3, 0.8f, 2}, params) == 2);
    CHECK(SampleOne(*device, {-1, -1, -3, -1}, params) == 2);
    // The bias comes first: 4 and -4 are what the penalty 2 divides and multiplies.
    LogitEdit biased[] = {{0, 2.0f, 0.0f, 5.0f}, {1, 2.0f, 0.0f, -5.0f}};
    params.edits = biased;
    CHECK(SampleOne(*device, {-1, 1, 1.9f}, params) == 0);
    CHECK(SampleOne(*device, {-1, 1, 2.1f}, params) == 2);
    CHECK(SampleOne(*device, {-20, 1, -7.9f}, params) == 2);
    CHECK(SampleOne(*device, {-20, 1, -8.1f}, params) == 1);
    LogitEdit ban[] = {{1, 1.0f, -kInfinity}};
    params.edits = ban;
    CHECK(SampleOne(*device, {1, 3, 2}, params) == 2);
    params.edits = {};
    uint32_t mask[2] = {1u << 31, 1u << 1};
    params.allowed = mask;
    std::vector<float> falling(40);
    for (int i = 0; i < 40; ++i) falling[i] = static_cast<float>(i % 33);
    CHECK(SampleOne(*device, falling, params) == 31);
  }
}

// Counts over many seeds against probabilities: chi-square at 99.99 %.
void CheckDistribution(Device& device, const std::vector<float>& logits, SampleRowParams params,
                       const std::map<int32_t, double>& expected) {
  constexpr int kDraws = 20000;
  std::map<int32_t, int> counts;
  Matrix matrix = Row(logits);
  std::vector<SampleRowParams> rows(kDraws, params);
  for (int i = 0; i < kDraws; ++i) rows[i].counter = static_cast<uint64_t>(i);
  Drawn drawn = Sample(device, matrix, rows);
  for (int32_t token : drawn.tokens) ++counts[token];
  double chi_square = 0;
  for (const auto& [token, count] : counts) {
    if (!expected.contains(token)) FAIL("drew " << token << ", which the filters exclude");
  }
  for (const auto& [token, p] : expected) {
    double difference = counts[token] - kDraws * p;
    chi_square += difference * difference / (kDraws * p);
  }
  // Wilson and Hilferty: the 99.99 % quantile (z = 3.72) of chi-square with df degrees.
  double df = std::max<double>(1, static_cast<double>(expected.size()) - 1);
  double limit = df * std::pow(1 - 2 / (9 * df) + 3.72 * std::sqrt(2 / (9 * df)), 3);
  CHECK(chi_square < limit);
}

TEST_CASE("Draws follow the distribution that temperature and filters leave", "[kernels][kernel]") {
  // Probabilities 0.4, 0.3, 0.2, 0.1 in mixed order.
  std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.seed = 7;
    CheckDistribution(*device, logits, params, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
    params.temperature = 0.5f;  // squares: 0.04, 0.16, 0.01, 0.09 of 0.3
    CheckDistribution(*device, logits, params,
                      {{0, 0.04 / 0.3}, {1, 0.16 / 0.3}, {2, 0.01 / 0.3}, {3, 0.09 / 0.3}});
    params.temperature = 1.0f;
    params.top_k = 2;
    CheckDistribution(*device, logits, params, {{1, 4.0 / 7}, {3, 3.0 / 7}});
    params.top_p = 0.5f;  // over what top_k left: 0.571 alone reaches it
    CheckDistribution(*device, logits, params, {{1, 1.0}});
    params.top_k = 0;  // 0.4 does not reach 0.5, 0.7 does
    CheckDistribution(*device, logits, params, {{1, 4.0 / 7}, {3, 3.0 / 7}});
    params.top_p = 1.0f;
    params.min_p = 0.45f;  // at least 0.18
    CheckDistribution(*device, logits, params, {{0, 2.0 / 9}, {1, 4.0 / 9}, {3, 3.0 / 9}});
    params.top_p = 0.95f;  // all four; min_p then removes 0.1
    CheckDistribution(*device, logits, params, {{0, 2.0 / 9}, {1, 4.0 / 9}, {3, 3.0 / 9}});
    params = SampleRowParams();
    CheckDistribution(*device, {-kInfinity, kInfinity, 3, kInfinity}, params, {{1, 0.5}, {3, 0.5}});
  }
}

TEST_CASE("Ties at the borders of top_k and top_p keep the lowest ids", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.top_k = 2;
    CheckDistribution(*device, {1, 1, 1, 1}, params, {{0, 0.5}, {1, 0.5}});
    CheckDistribution(*device, {0, 1, 2, 1}, params,
                      {{2, std::exp(1) / (1 + std::exp(1))}, {1, 1 / (1 + std::exp(1))}});
    params.top_k = 0;
    params.top_p = 0.74f;
    CheckDistribution(*device, {1, 1, 1, 1}, params, {{0, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3}});
    params.top_p = 0.0f;  // at least one
    CheckDistribution(*device, {1, 1, 1, 1}, params, {{0, 1.0}});
  }
}

// transformers.TypicalLogitsWarper on the same logits: the likeliest may go, ties stay together.
TEST_CASE("typical_p keeps the tokens of nearly average surprise", "[kernels][kernel]") {
  // Probabilities 0.5, 0.2, 0.1 three times; entropy 1.359, surprises 0.693, 1.609, 2.303.
  std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.1f), std::log(0.2f),
                               std::log(0.1f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.typical_p = 0.15f;
    CheckDistribution(*device, logits, params, {{3, 1.0}});
    params.typical_p = 0.5f;
    CheckDistribution(*device, logits, params, {{1, 5.0 / 7}, {3, 2.0 / 7}});
    params.typical_p = 0.75f;  // one of the three reaches it
    CheckDistribution(*device, logits, params, {{0, 0.1}, {1, 0.5}, {2, 0.1}, {3, 0.2}, {4, 0.1}});
    params.top_k = 2;  // entropy 0.598, surprises 0.336 and 1.253
    params.typical_p = 0.5f;
    CheckDistribution(*device, logits, params, {{1, 1.0}});
    params.top_k = 5;
    params.typical_p = 1e-6f;  // one at least
    CheckDistribution(*device, logits, params, {{3, 1.0}});
    CheckDistribution(*device, {-kInfinity, kInfinity, 3, kInfinity}, params, {{1, 0.5}, {3, 0.5}});
    params.top_k = 0;
    CheckDistribution(*device, {2, kNan, 2, -kInfinity}, params, {{0, 0.5}, {2, 0.5}});
  }
}

// llama.cpp's published cases (tests/test-sampling.cpp) of probabilities 0.1 to 0.4: their logits
// have the standard deviation 0.5156, so that one of it leaves those above 0.239.
TEST_CASE("top_n_sigma keeps the logits within n standard deviations of the largest",
          "[kernels][kernel]") {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.2f), std::log(0.3f),
                                     std::log(0.4f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.top_n_sigma = 1.0f;
    CheckDistribution(*device, logits, params, {{2, 0.428571}, {3, 0.571429}});
    params.temperature = 0.5f;  // scales the deviation as it does the distances
    CheckDistribution(*device, logits, params, {{2, 9.0 / 25}, {3, 16.0 / 25}});
    params.temperature = 1.0f;
    for (float off : {0.0f, -1.0f, 3.0f}) {
      params.top_n_sigma = off;
      CheckDistribution(*device, logits, params, {{0, 0.1}, {1, 0.2}, {2, 0.3}, {3, 0.4}});
    }
    // The filters behind it see what it left: 0.3 and 0.4.
    params.top_n_sigma = 1.0f;
    params.top_p = 0.58f;
    CheckDistribution(*device, logits, params, {{2, 0.428571}, {3, 0.571429}});
    params.top_p = 0.57f;
    CheckDistribution(*device, logits, params, {{3, 1.0}});
    params.top_p = 1.0f;
    params.top_k = 3;
    CheckDistribution(*device, logits, params, {{2, 0.428571}, {3, 0.571429}});
    params.top_k = 0;
    params.typical_p = 0.1f;  // surprises 0.847 and 0.560, entropy 0.683: the likelier is nearer
    CheckDistribution(*device, logits, params, {{3, 1.0}});
  }
}

TEST_CASE("top_n_sigma measures finite logits alone", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.top_n_sigma = 1.0f;
    // 1, 2, 3, 4: deviation 1.118, so that 3 and 4 stay.
    const double e = std::exp(1.0);
    const std::map<int32_t, double> expected = {{4, 1 / (1 + e)}, {6, e / (1 + e)}};
    CheckDistribution(*device, {1, -kInfinity, 2, kNan, 3, -kInfinity, 4}, params, expected);
    uint32_t mask[1] = {0b1010101};
    params.allowed = mask;
    CheckDistribution(*device, {1, 50, 2, -90, 3, 7, 4}, params, expected);
    params.allowed = nullptr;
    LogitEdit bans[] = {{1, 1.0f, -kInfinity}, {3, 1.0f, -kInfinity}, {5, 1.0f, -kInfinity}};
    params.edits = bans;
    CheckDistribution(*device, {1, 50, 2, -90, 3, 7, 4}, params, expected);
    params.edits = {};
    CheckDistribution(*device, {2, 2, 2}, params, {{0, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3}});
    CheckDistribution(*device, {-kInfinity, kInfinity, 3, kInfinity}, params, {{1, 0.5}, {3, 0.5}});
    CheckDistribution(*device, {kNan, -7, -kInfinity}, params, {{1, 1.0}});
    CHECK(SampleOne(*device, {kNan, -kInfinity}, params) == -1);
    params.temperature = 0;
    CHECK(SampleOne(*device, {1, 3, 2}, params) == 1);
  }
}

// llama.cpp's published cases (tests/test-sampling.cpp) of probabilities 0.4 to 0.1.
TEST_CASE("XTC leaves the least likely of the tokens that reach its threshold, and all below",
          "[kernels][kernel]") {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f),
                                     std::log(0.1f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.xtc_probability = 1.0f;
    params.xtc_threshold = 0.09f;
    CheckDistribution(*device, logits, params, {{3, 1.0}});
    params.xtc_threshold = 0.19f;
    CheckDistribution(*device, logits, params, {{2, 2.0 / 3}, {3, 1.0 / 3}});
    params.xtc_threshold = 0.29f;
    CheckDistribution(*device, logits, params, {{1, 3.0 / 6}, {2, 2.0 / 6}, {3, 1.0 / 6}});
    for (float of_one_or_none : {0.39f, 0.41f, 0.51f, 1.0f}) {
      params.xtc_threshold = of_one_or_none;
      CheckDistribution(*device, logits, params, {{0, 0.4}, {1, 0.3}, {2, 0.2}, {3, 0.1}});
    }
    // What the filters before it leave is renormalised: 4/7 and 3/7.
    params.xtc_threshold = 0.42f;
    params.top_k = 2;
    CheckDistribution(*device, logits, params, {{1, 1.0}});
    params.xtc_threshold = 0.43f;
    CheckDistribution(*device, logits, params, {{0, 4.0 / 7}, {1, 3.0 / 7}});
    params.top_k = 0;
    params.min_p = 0.6f;
    params.xtc_threshold = 0.42f;
    CheckDistribution(*device, logits, params, {{1, 1.0}});
    params.min_p = 0.0f;
    params.typical_p = 0.45f;  // 0.3 and 0.2 are nearest to the entropy of 1.28
    params.xtc_threshold = 0.39f;
    CheckDistribution(*device, logits, params, {{2, 1.0}});
  }
}

TEST_CASE("XTC tosses its own coin for each draw", "[kernels][kernel]") {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f),
                                     std::log(0.1f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.xtc_threshold = 0.19f;
    for (double p : {0.25, 0.9}) {
      params.xtc_probability = static_cast<float>(p);
      const double q = 1 - p;
      CheckDistribution(
          *device, logits, params,
          {{0, 0.4 * q}, {1, 0.3 * q}, {2, 0.2 * q + p * 2 / 3}, {3, 0.1 * q + p / 3}});
    }
    params.xtc_probability = 0.0f;
    CheckDistribution(*device, logits, params, {{0, 0.4}, {1, 0.3}, {2, 0.2}, {3, 0.1}});
  }
}

TEST_CASE("XTC keeps equals together and always leaves a token", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    SampleRowParams params;
    params.xtc_probability = 1.0f;
    params.xtc_threshold = 0.1f;
    CheckDistribution(*device, {1, 1, 1, 1}, params, {{0, 0.25}, {1, 0.25}, {2, 0.25}, {3, 0.25}});
    CheckDistribution(*device, {2, 1, 2, 1}, params, {{1, 0.5}, {3, 0.5}});
    CheckDistribution(*device, {-kInfinity, 5, kNan}, params, {{1, 1.0}});
    CheckDistribution(*device, {-kInfinity, kInfinity, 3, kInfinity}, params, {{1, 0.5}, {3, 0.5}});
    params.xtc_threshold = 0.0f;
    CheckDistribution(*device, {1, 0, -kInfinity}, params, {{1, 1.0}});
    CHECK(SampleOne(*device, {kNan, -kInfinity}, params) == -1);
    params.temperature = 0;
    CHECK(SampleOne(*device, {1, 3, 2}, params) == 1);
  }
}

std::vector<SampleRowParams> MixedParams(int n) {
  Random random(11);
  std::vector<SampleRowParams> rows(n);
  for (int i = 0; i < n; ++i) {
    SampleRowParams& row = rows[i];
    row.logit_row = random.Below(3);
    row.temperature = i % 5 == 0 ? 0.0f : random.Uniform(0.2f, 2.0f);
    row.xtc_probability = i % 9 == 2 || i % 9 == 7 ? random.Uniform(0.3f, 1.0f) : 0.0f;
    row.xtc_threshold = random.Uniform(0.005f, 0.3f);
    row.top_n_sigma = i % 8 == 3 ? random.Uniform(0.1f, 4.0f) : -1.0f;
    row.top_k = i % 3 == 0 ? 1 + random.Below(100) : 0;
    row.top_p = i % 2 == 0 ? random.Uniform(0.1f, 1.0f) : 1.0f;
    row.min_p = i % 7 == 0 ? random.Uniform(0.0f, 0.3f) : 0.0f;
    row.typical_p = i % 6 == 1 ? random.Uniform(0.1f, 1.0f) : 1.0f;
    row.seed = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
    row.counter = static_cast<uint64_t>(i) << 20;
    row.num_top = i % 4 - 1;
    row.forced_token = i % 11 == 0 ? random.Below(1000) : -1;
  }
  return rows;
}

TEST_CASE("Every level draws what the reference draws from large vocabularies",
          "[kernels][kernel]") {
  std::unique_ptr<Device> reference = CreateReferenceDevice();
  for (int64_t vocab : {1000, 32003, 151936}) {
    Random random(5);
    Matrix logits = Matrix::RandomOf(random, 3, vocab, 1);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < vocab; ++c) *logits.at(r, c) *= 3.0f;
    }
    std::vector<SampleRowParams> rows = MixedParams(60);
    Drawn expected = Sample(*reference, logits, rows, 3);
    for (auto& [name, device] : CpuDevices(3)) {
      INFO(name << " vocabulary " << vocab);
      Drawn found = Sample(*device, logits, rows, 3);
      int differing = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        // Weights are F32: a draw within their rounding of a border may fall on the neighbour.
        differing += found.tokens[i] != expected.tokens[i];
        if (found.tokens[i] != expected.tokens[i] || rows[i].num_top < 0) continue;
        CHECK(found.logprobs[i] == Approx(expected.logprobs[i]).margin(2e-5));
        for (int32_t j = 0; j < rows[i].num_top; ++j) {
          CHECK(found.top_tokens[i * 3 + j] == expected.top_tokens[i * 3 + j]);
          CHECK(found.top_logprobs[i * 3 + j] ==
                Approx(expected.top_logprobs[i * 3 + j]).margin(2e-5));
        }
      }
      CHECK(differing <= 1);
    }
  }
}

TEST_CASE("A draw depends on seed and counter and not on the other rows", "[kernels][kernel]") {
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    Random random(5);
    Matrix logits = Matrix::RandomOf(random, 3, 5000);
    std::vector<SampleRowParams> rows = MixedParams(40);
    Drawn together = Sample(*device, logits, rows, 3);
    for (size_t i = 0; i < rows.size(); ++i) {
      Drawn alone = Sample(*device, logits, {rows[i]}, 3);
      CHECK(alone.tokens[0] == together.tokens[i]);
      if (rows[i].num_top >= 0) CHECK(alone.logprobs[0] == together.logprobs[i]);
    }
  }
}

TEST_CASE("Logprobs are of the softmax before edits and filters", "[kernels][unit]") {
  std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  for (auto& [name, device] : AllDevices()) {
    INFO(name);
    Matrix matrix = Row(logits);
    SampleRowParams params;
    LogitEdit edit[] = {{0, 1.0f, 100.0f}};
    params.edits = edit;
    params.temperature = 0;
    params.num_top = 5;  // more than there are
    Drawn drawn = Sample(*device, matrix, {params}, 5);
    CHECK(drawn.tokens[0] == 0);
    CHECK(drawn.logprobs[0] == Approx(std::log(0.2)));
    CHECK(std::vector<int32_t>(drawn.top_tokens) == std::vector<int32_t>{1, 2, 0, -1, -1});
    CHECK(drawn.top_logprobs[1] == Approx(std::log(0.3)));
    CHECK(drawn.top_logprobs[4] == -kInfinity);
    params.forced_token = 2;
    params.num_top = 0;
    drawn = Sample(*device, matrix, {params}, 0);
    CHECK(drawn.tokens[0] == 2);
    CHECK(drawn.logprobs[0] == Approx(std::log(0.3)));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
