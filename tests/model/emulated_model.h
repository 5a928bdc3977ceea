// Small models on the emulated CUDA device, and on the reference beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "scheduler/request.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {

// Steps of up to 64 tokens over an F32 cache, unless the caller changes that.
inline engine::LoadOptions EmulatedOptions(kernels::DType activations, int32_t page_tokens) {
  engine::LoadOptions options;
  options.make_device = [activations] {
    return kernels::CreateCudaDevice(
        {.activations = activations, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = page_tokens;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  return options;
}

inline std::unique_ptr<engine::LocalExecutor> LoadOn(const std::filesystem::path& path,
                                                     const engine::LoadOptions& options) {
  auto model = engine::LoadLocalModel(path, options);
  INFO(path.string() << ": " << model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

inline std::unique_ptr<engine::LocalExecutor> LoadReference(const std::filesystem::path& path) {
  engine::LoadOptions options = EmulatedOptions(kernels::DType::kF32, 16);
  options.make_device = nullptr;
  options.reference_ops = true;
  return LoadOn(path, options);
}

// The root of the mean square of what they differ by.
inline double Apart(const std::vector<float>& found, const std::vector<float>& wanted) {
  REQUIRE(found.size() == wanted.size());
  double sum = 0;
  for (size_t i = 0; i < found.size(); ++i) sum += std::pow(double{found[i]} - wanted[i], 2);
  return std::sqrt(sum / static_cast<double>(found.size()));
}

// The golden's model with BF16 activations and the kernels for them.
inline std::vector<float> RoundedLogits(const Golden& golden, const std::string& kv_type) {
  TempDir dir;
  engine::LoadOptions options = EmulatedOptions(kernels::DType::kBF16, 16);
  options.kv_type = kv_type;
  const auto executor = LoadOn(WriteSyntheticModel(golden, dir.path()), options);
  return AllLogits(*executor, golden.prompt, 9);
}

// Checks them against the reference's. Some sixteen roundings to BF16 in every layer, of up to 2^-8
// each, uniform; norms of small outputs and decays make more of some: up to three times the mean.
inline void CheckRounded(const char* name, const std::string& kv_type = "f32") {
  INFO(name);
  const Golden golden = LoadGolden(name);
  TempDir dir;
  const auto reference = LoadReference(WriteSyntheticModel(golden, dir.path()));
  const std::vector<float> wanted = AllLogits(*reference, golden.prompt, 64);
  double sum = 0;
  for (const float logit : wanted) sum += logit;
  const double mean = sum / static_cast<double>(wanted.size());
  const double spread = Apart(wanted, std::vector<float>(wanted.size(), static_cast<float>(mean)));
  const double expected =
      0x1p-8 / std::sqrt(3.0) * std::sqrt(16.0 * reference->spec().n_layers()) * spread;
  CHECK(Apart(RoundedLogits(golden, kv_type), wanted) < 3 * expected);
}

// Half of them share a prefix; the fourth has branches. Answers have `most_tokens` at most.
inline std::vector<scheduler::GenerationRequest> SharingRequests(int32_t vocab, int32_t count = 5,
                                                                 int32_t most_tokens = 1000) {
  std::vector<scheduler::GenerationRequest> requests;
  for (int32_t i = 1; i <= count; ++i) {
    scheduler::GenerationRequest request;
    request.id = scheduler::RequestId{static_cast<uint64_t>(i)};
    for (int32_t t = 0; t < (i % 2 == 0 ? 35 : 9 + i); ++t) {
      const int32_t salt = i % 2 == 0 && t < 33 ? 0 : 7 * i;
      request.prompt.push_back(3 + (t * 37 + salt) % (vocab - 3));
    }
    request.max_tokens = std::min(i % 2 == 0 ? 8 : 16 + i, most_tokens);
    request.num_branches = i == 4 ? 2 : 1;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    request.sampling.num_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace heddle::test
