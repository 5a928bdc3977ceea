#include "tests/gpu/shape_checks.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/stepped_answers.h"
#include "tests/support/greedy_runner.h"

namespace heddle::gpu {
namespace {

using engine::TokenId;

// A small vocabulary, as a rule: the reference keeps all logits of a step.
constexpr int32_t kSmallVocab = 8192;

struct Case {
  const char* shape;
  const char* weights;
  const char* kv_type;
  int64_t kv_mib = 16;
  int32_t vocab = kSmallVocab;
  size_t n_layers = 1;
};
constexpr Case kCases[] = {
    // Keys of one layer beyond 2^31 bytes and elements, which a pool of all of a GPU's memory has
    // for
    // models of few layers. Sequences lie all over it.
    {"llama-3.1-8b", "bf16", "bf16", 5 << 10},
    {"llama-3.1-8b", "fp8", "fp8", 5 << 10},
    {"llama-3.1-8b", "q4_0", "f16"},
    {"llama-3.1-8b", "q8_0", "int8"},
    {"llama-3.1-8b", "q4_k", "bf16"},
    {"qwen2.5-0.5b", "bf16", "bf16"},
    {"qwen3-1.7b", "mxfp4", "f16"},
    {"llama-3.1-70b", "bf16", "bf16", 16, 128256},  // a head of 2.1 GB
    {"llama-3.1-70b", "q4_0", "fp8"},
    // Short convolutions and gated delta nets, with the first layer of each that attends.
    {"lfm2-1.2b", "bf16", "bf16", 1 << 10, kSmallVocab, 3},
    {"qwen3.5-0.8b", "bf16", "bf16", 1 << 10, kSmallVocab, 4},
};

// Where products, norms and attention begin to go another way, and the numbers beside.
constexpr int32_t kRows[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200};

// Some dozens of roundings of BF16 per logit, and the CPU's rows of 8 bits where weights are codes.
constexpr double kTolerance = 0.05;

absl::StatusOr<engine::LocalModel> Load(
    const Case& c,
    const std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>()>& make_device) {
  HEDDLE_ASSIGN_OR_RETURN(engine::ModelSpec spec, engine::KnownShape(c.shape));
  spec.layers.resize(c.n_layers);
  spec.vocab = c.vocab;
  spec = Sized(std::move(spec));
  HEDDLE_ASSIGN_OR_RETURN(const kernels::DType weights, engine::RandomFormat(c.weights));
  engine::LoadOptions options;
  options.make_device = make_device;
  options.capacity.kv_bytes = Sized(c.kv_mib, 16) << 20;
  options.capacity.max_context = 512;
  options.capacity.max_batch_tokens = 256;
  options.capacity.max_batch_seqs = 64;
  options.kv_type = c.kv_type;
  return engine::LoadRandomModel(spec, weights, options);
}

std::vector<TokenId> Prompt(int32_t length) {
  std::vector<TokenId> tokens;
  const int32_t vocab = Sized(kSmallVocab, 512);
  for (int32_t i = 0; i < length; ++i) tokens.push_back((i * 2654435 + 17) % vocab);
  return tokens;
}

double Distance(const std::vector<float>& found, const std::vector<float>& wanted) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::fabs(double{found[i]} - wanted[i]);
    worst = std::isfinite(difference) ? std::fmax(worst, difference) : INFINITY;
    largest = std::fmax(largest, std::fabs(wanted[i]));
  }
  return worst / largest;
}

// Runs full steps and the rest of a prompt, which sees a context that other steps wrote.
double DistanceOf(int32_t rows, engine::LocalExecutor& device, engine::LocalExecutor& cpu) {
  const std::vector<TokenId> prompt = Prompt(rows + std::min(rows, 7));
  return Distance(test::AllLogits(device, prompt, rows), test::AllLogits(cpu, prompt, rows));
}

// Between log-probabilities of served answers; those of random models spread over some 10.
constexpr double kServedTolerance = 0.25;
constexpr int32_t kMostTokens = 6;  // of an answer

// Sequences that come and go beside chunks of others' prompts, on both: the distance of their
// log-probabilities until they part.
absl::StatusOr<double> DistanceServed(engine::LocalExecutor& device, engine::LocalExecutor& cpu) {
  const auto requests = SteppedRequests(device.limits(), nullptr, kMostTokens);
  HEDDLE_ASSIGN_OR_RETURN(const SteppedRun found, RunSteps(device, requests, {.ahead = true}));
  HEDDLE_ASSIGN_OR_RETURN(const SteppedRun wanted, RunSteps(cpu, requests, {}));
  return CompareNearly(found.answers, wanted.answers).distance;
}

}  // namespace

absl::Status CheckShapes(
    const std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>()>& make_device,
    const ShapeReport& report) {
  for (const Case& c : kCases) {
    const std::string model = absl::StrCat(c.shape, " ", c.weights, " (cache ", c.kv_type, ")");
    const auto name_of = [&](int32_t rows) { return absl::StrCat(model, ", rows ", rows, " "); };
    const std::string served = absl::StrCat(model, ", served");
    std::vector<int32_t> asked;
    for (const int32_t rows : kRows) {
      if (rows <= Sized(rows, 40) && report.begins(name_of(rows))) asked.push_back(rows);
    }
    const bool serves = report.begins(served);
    if (asked.empty() && !serves) continue;
    HEDDLE_ASSIGN_OR_RETURN(const engine::LocalModel device, Load(c, make_device));
    HEDDLE_ASSIGN_OR_RETURN(const engine::LocalModel cpu, Load(c, nullptr));
    for (const int32_t rows : asked) {
      const double distance = DistanceOf(rows, *device.executor, *cpu.executor);
      report.ends(name_of(rows), distance, distance <= kTolerance);
    }
    if (!serves) continue;
    HEDDLE_ASSIGN_OR_RETURN(const double distance, DistanceServed(*device.executor, *cpu.executor));
    report.ends(served, distance, distance <= kServedTolerance);
  }
  return absl::OkStatus();
}

}  // namespace heddle::gpu
