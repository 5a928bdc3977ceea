#include "scheduler/simulation/workload.h"

#include <algorithm>
#include <cmath>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

struct Moments {
  double mean, deviation;
};

Moments Of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values.size());
  return {sum / count, std::sqrt(squares / count - (sum / count) * (sum / count))};
}

std::vector<double> PromptLengths(const std::vector<SimulatedRequest>& requests) {
  std::vector<double> lengths;
  for (const SimulatedRequest& request : requests) lengths.push_back(request.prompt_tokens);
  return lengths;
}

TEST_CASE("Arrivals are Poisson: gaps have the mean 1/rate, and deviate by as much",
          "[simulation]") {
  const auto requests = MakeLoad({.num_requests = 20000, .requests_per_s = 50});
  std::vector<double> gaps;
  for (size_t i = 1; i < requests.size(); ++i) {
    gaps.push_back(static_cast<double>(requests[i].arrival_us - requests[i - 1].arrival_us));
  }
  const Moments moments = Of(gaps);
  CHECK(moments.mean == Approx(20000).epsilon(0.03));
  CHECK(moments.deviation == Approx(20000).epsilon(0.03));
}

TEST_CASE("Lengths have the asked-for mean and the spread of their distribution", "[simulation]") {
  // Deviations of the distributions: 0, mean / sqrt(12), mean, mean * sqrt(e - 1).
  const std::pair<LengthShape, double> kShapes[] = {{LengthShape::kFixed, 0},
                                                    {LengthShape::kUniform, 1000 / 3.4641},
                                                    {LengthShape::kExponential, 1000},
                                                    {LengthShape::kLognormal, 1310.8}};
  for (const auto& [shape, deviation] : kShapes) {
    const auto requests =
        MakeLoad({.num_requests = 200000, .mean_prompt_tokens = 1000, .lengths = shape});
    const Moments moments = Of(PromptLengths(requests));
    CHECK(moments.mean == Approx(1000).epsilon(0.02));
    CHECK(moments.deviation == Approx(deviation).epsilon(0.05).margin(0.01));
  }
}

TEST_CASE("The same seed makes the same load, another seed another one", "[simulation]") {
  const SyntheticLoad load{
      .num_requests = 50, .requests_per_s = 3, .lengths = LengthShape::kLognormal};
  SyntheticLoad other = load;
  other.seed = 2;
  CHECK(PromptLengths(MakeLoad(load)) == PromptLengths(MakeLoad(load)));
  CHECK(PromptLengths(MakeLoad(load)) != PromptLengths(MakeLoad(other)));
}

TEST_CASE("No prompt is longer than allowed, its prefix included", "[simulation]") {
  const auto requests = MakeLoad({.num_requests = 1000,
                                  .mean_prompt_tokens = 300,
                                  .lengths = LengthShape::kLognormal,
                                  .prefix_groups = 3,
                                  .prefix_tokens = 100,
                                  .max_tokens = 400});
  for (const SimulatedRequest& request : requests) {
    CHECK(request.prompt_tokens > request.prefix_tokens);
    CHECK(request.prompt_tokens <= 400);
    CHECK(request.prefix_group >= 1);
    CHECK(request.prefix_group <= 3);
  }
}

TEST_CASE("Prompts of one group begin alike, exactly as long as they say", "[simulation]") {
  const SimulatedRequest a{.prompt_tokens = 50, .prefix_group = 7, .prefix_tokens = 30};
  const SimulatedRequest b{.prompt_tokens = 60, .prefix_group = 8, .prefix_tokens = 30};
  const auto first = ToGenerationRequest(a, 1).prompt, second = ToGenerationRequest(a, 2).prompt;
  const auto other = ToGenerationRequest(b, 3).prompt;
  CHECK(std::mismatch(first.begin(), first.end(), second.begin()).first - first.begin() == 30);
  CHECK(std::mismatch(first.begin(), first.end(), other.begin()).first == first.begin());
}

}  // namespace
}  // namespace heddle::scheduler
