// An executor of a golden's model with random weights, for tests that write plans by hand.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"

namespace heddle::test {

inline constexpr int32_t kSyntheticPageTokens = 8;

using MakeDevice = decltype(engine::LoadOptions::make_device);  // empty: the CPU

// The golden `name`, written to `folder`: caches in F32, at most 64 rows a step.
inline std::unique_ptr<engine::LocalExecutor> LoadSynthetic(const std::string& name,
                                                            const std::filesystem::path& folder,
                                                            bool reference_ops = false,
                                                            const MakeDevice& make = {}) {
  engine::LoadOptions options;
  options.reference_ops = reference_ops;
  options.make_device = make;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.page_tokens = kSyntheticPageTokens;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(WriteSyntheticModel(LoadGolden(name), folder), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

}  // namespace heddle::test
