// Draws of a drafter, accepted or drawn again.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/sample_cases.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {
namespace {

constexpr int kRejectionVocab = 40;

Matrix Waves(double phase, double height) {
  std::vector<float> values;
  for (int i = 0; i < kRejectionVocab; ++i) {
    values.push_back(static_cast<float>(std::sin(i * 1.7 + phase) * height));
  }
  return Row(std::move(values));
}

// The distribution at a temperature among the likeliest tokens that have `top_p` together.
std::vector<double> SharesOf(const Matrix& logits, double temperature, double top_p) {
  std::vector<double> shares;
  for (int i = 0; i < kRejectionVocab; ++i) shares.push_back(std::exp(logits(0, i) / temperature));
  std::vector<double> ranked = shares;
  std::sort(ranked.rbegin(), ranked.rend());
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  double kept = 0;
  double least = 0;
  for (size_t i = 0; i < ranked.size() && kept < top_p * total; ++i) kept += least = ranked[i];
  for (double& share : shares) share = share >= least ? share / kept : 0;
  return shares;
}

// Five standard deviations above the mean of chi-square.
void CheckDistribution(const std::vector<double>& counts, const std::vector<double>& shares) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double chi_square = 0;
  int degrees = -1;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    const double difference = counts[i] - shares[i] * draws;
    chi_square += difference * difference / (shares[i] * draws);
    ++degrees;
  }
  CHECK(chi_square < degrees + 5 * std::sqrt(2.0 * degrees));
}

// Leviathan et al. 2023, appendix: tokens have the model's distribution, and a proposed one is
// accepted with the sum of min(p, q).
TEST_CASE("Rejection sampling keeps the distribution and accepts what both have",
          "[kernels][unit]") {
  constexpr int kDraws = 20000;
  Matrix model = Waves(0, 2);
  Matrix drafter = Waves(0.6, 2.5);
  const float top_p = GENERATE(1.0f, 0.8f);
  const std::vector<double> p = SharesOf(model, 0.9, top_p);
  const std::vector<double> q = SharesOf(drafter, 0.9, top_p);
  double overlap = 0;
  for (size_t i = 0; i < p.size(); ++i) overlap += std::min(p[i], q[i]);
  for (auto& [name, device] : AllDevices()) {
    INFO(name << ", top_p " << top_p);
    REQUIRE(device->samples_by_rejection());
    std::vector<float> shares(size_t{kDraws} * kRejectionVocab);
    std::vector<SampleRowParams> rows(kDraws);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].temperature = 0.9f;
      rows[i].top_p = top_p;
      rows[i].seed = 77;
      rows[i].counter = i;
      rows[i].shares = &shares[i * kRejectionVocab];
    }
    const std::vector<int32_t> guesses = Sample(*device, drafter, rows).tokens;
    for (size_t i = 0; i < q.size(); ++i) CHECK(shares[i] == Approx(q[i]).margin(1e-4));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].seed = 78;
      rows[i].proposed = guesses[i];
      rows[i].proposed_shares = std::exchange(rows[i].shares, nullptr);
    }
    const std::vector<int32_t> tokens = Sample(*device, model, rows).tokens;
    std::vector<double> counts(kRejectionVocab);
    for (int32_t token : tokens) ++counts[static_cast<size_t>(token)];
    double accepted = 0;
    for (size_t i = 0; i < tokens.size(); ++i) accepted += tokens[i] == guesses[i] ? 1 : 0;
    CheckDistribution(counts, p);
    CHECK(accepted == Approx(overlap * kDraws).margin(4 * std::sqrt(kDraws)));
  }
}
}  // namespace
}  // namespace heddle::kernels::test
