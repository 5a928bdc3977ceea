#include "scheduler/simulation/workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heddle::scheduler {
namespace {

// The output function of SplitMix64 (Steele et al., 2014): a good hash of a counter.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}

  // A uniform number in (0, 1), so that its logarithm is finite.
  double Uniform() {
    state_ += 0x9e3779b97f4a7c15;
    return (static_cast<double>(Mix(state_) >> 11) + 0.5) * 0x1p-53;
  }
  double Exponential() { return -std::log(Uniform()); }
  // A standard normal number (Box and Muller, 1958).
  double Normal() {
    const double radius = std::sqrt(2 * Exponential());
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }

 private:
  uint64_t state_;
};

int32_t DrawLength(LengthShape shape, double mean, int32_t most, Random& random) {
  double length = mean;
  switch (shape) {
    case LengthShape::kFixed:
      break;
    case LengthShape::kUniform:
      length = mean * (0.5 + random.Uniform());
      break;
    case LengthShape::kExponential:
      length = mean * random.Exponential();
      break;
    case LengthShape::kLognormal:
      length = mean * std::exp(random.Normal() - 0.5);  // the mean of e^N(0, 1) is e^0.5
      break;
  }
  return static_cast<int32_t>(std::clamp(std::round(length), 1.0, static_cast<double>(most)));
}

// Draws ranks from 1 on with probabilities in proportion to 1 / rank^skew.
class Zipf {
 public:
  Zipf(int32_t ranks, double skew) : sums_(static_cast<size_t>(ranks)) {
    double sum = 0;
    for (size_t i = 0; i < sums_.size(); ++i) {
      sum += std::pow(static_cast<double>(i + 1), -skew);
      sums_[i] = sum;
    }
  }
  uint64_t Draw(Random& random) const {
    const auto at = std::lower_bound(sums_.begin(), sums_.end(), random.Uniform() * sums_.back());
    return static_cast<uint64_t>(std::min(at, sums_.end() - 1) - sums_.begin()) + 1;
  }

 private:
  std::vector<double> sums_;  // of the weights of all ranks up to this one
};

// Streams of token ids: those of groups and those of requests never overlap.
constexpr uint64_t kGroupStream = 0x47524f5550;
constexpr uint64_t kRequestStream = 0x52455155;

TokenId TokenAt(uint64_t stream, int32_t place) {
  return static_cast<TokenId>(Mix(stream + static_cast<uint64_t>(place)) >> 33);
}

}  // namespace

std::vector<SimulatedRequest> MakeLoad(const SyntheticLoad& load) {
  Random random(load.seed);
  std::vector<SimulatedRequest> requests(static_cast<size_t>(load.num_requests));
  const Zipf popularity(load.adapters, load.adapter_skew);
  double now_us = 0;
  for (SimulatedRequest& request : requests) {
    if (load.requests_per_s > 0) now_us += random.Exponential() / load.requests_per_s * 1e6;
    request.arrival_us = static_cast<int64_t>(now_us);
    request.prompt_tokens =
        DrawLength(load.lengths, load.mean_prompt_tokens, load.max_tokens, random);
    request.output_tokens =
        DrawLength(load.lengths, load.mean_output_tokens, load.max_tokens, random);
    if (load.adapters > 0) {
      request.adapter = popularity.Draw(random);
      request.adapter_pages = load.adapter_pages;
    }
    if (load.prefix_tokens == 0) continue;
    request.prompt_tokens = std::min(request.prompt_tokens, load.max_tokens - load.prefix_tokens);
    request.prompt_tokens += load.prefix_tokens;
    request.prefix_tokens = load.prefix_tokens;
    request.prefix_group = 1 + static_cast<uint64_t>(random.Uniform() * load.prefix_groups);
  }
  return requests;
}

GenerationRequest ToGenerationRequest(const SimulatedRequest& request, uint64_t index) {
  GenerationRequest out;
  out.id = RequestId{index + 1};
  out.max_tokens = request.output_tokens;
  out.num_branches = request.branches;
  out.priority = request.priority;
  out.deadline_us = request.deadline_us;
  out.workflow = request.workflow;
  out.tenant = request.tenant;
  if (request.forks > 0) out.call = index + 1;
  out.adapter.id = engine::AdapterId{request.adapter};
  out.adapter.num_pages = request.adapter_pages;
  out.cache_space = request.adapter;
  out.prompt.resize(static_cast<size_t>(request.prompt_tokens));
  const uint64_t group = Mix(kGroupStream + request.prefix_group);
  const uint64_t own = Mix(kRequestStream + index);
  const int32_t shared = request.prefix_group == 0 ? 0 : request.prefix_tokens;
  for (int32_t i = 0; i < request.prompt_tokens; ++i) {
    out.prompt[static_cast<size_t>(i)] = TokenAt(i < shared ? group : own, i);
  }
  return out;
}

}  // namespace heddle::scheduler
