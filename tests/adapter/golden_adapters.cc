#include "tests/adapter/golden_adapters.h"

#include <algorithm>
#include <cmath>

#include "catch2/catch.hpp"
#include "engine/adapter/compose_adapters.h"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/synthetic_weights.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {

using nlohmann::json;

engine::LoadOptions AdapterBaseOptions() {
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  options.capacity.adapter_max_rank = 8;
  options.kv_type = "f32";
  return options;
}

engine::LocalModel LoadAdapterBase(const std::filesystem::path& path,
                                   const engine::LoadOptions& options) {
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return *std::move(model);
}

engine::LocalModel LoadAdapterBase(const std::filesystem::path& path, const std::string& ops) {
  engine::LoadOptions options = AdapterBaseOptions();
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  return LoadAdapterBase(path, options);
}

std::filesystem::path WriteAdapter(const json& adapter, int bits,
                                   const std::filesystem::path& folder) {
  std::vector<TensorToWrite> tensors;
  for (const json& tensor : adapter["tensors"]) {
    const auto shape = tensor[1].get<std::vector<int64_t>>();
    const std::string name = tensor[0];
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const float offset = tensor.size() > 3 ? tensor[3].get<float>() : 0.0f;
    const std::vector<float> values = SyntheticValues(name, count, tensor[2], offset, bits);
    const auto bytes = std::as_bytes(std::span(values));
    tensors.push_back({name, "F32", shape, {bytes.begin(), bytes.end()}});
  }
  std::filesystem::create_directory(folder);
  WriteFile(folder / "adapter_config.json", adapter["config"].dump());
  WriteFile(folder / "adapter_model.safetensors", SafetensorsBytes(tensors));
  return folder;
}

engine::AdapterTarget TargetOf(const engine::LocalModel& model, const std::filesystem::path& base) {
  const engine::ExecutorLimits& limits = model.executor->limits();
  return {.model = &model.model,
          .dtype = limits.adapter_dtype,
          .page_bytes = limits.page_bytes,
          .max_rank = limits.adapter_max_rank,
          .base = base,
          .shares = model.shares,
          .rank_page_bytes = model.capacity.rank_page_bytes};
}

RunAdapter LoadInto(const engine::LocalModel& model, const std::filesystem::path& base,
                    const std::filesystem::path& adapter) {
  auto loaded = engine::LoadAdapter(adapter, TargetOf(model, base));
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  loaded->image->id = engine::AdapterId{1};
  return {loaded->image, 1.0f};
}

RunAdapter LoadCase(const json& golden, int bits, const engine::LocalModel& model,
                    const std::filesystem::path& base, const std::filesystem::path& dir) {
  if (!golden.contains("members")) {
    return LoadInto(model, base, WriteAdapter(golden, bits, dir / "adapter"));
  }
  std::vector<RunAdapter> members;
  std::vector<engine::AdapterShare> shares;
  for (size_t i = 0; i < golden["members"].size(); ++i) {
    const auto folder = dir / ("adapter" + std::to_string(i));
    members.push_back(LoadInto(model, base, WriteAdapter(golden["members"][i], bits, folder)));
    shares.push_back({"member", members.back().image.get(), golden["weights"][i].get<float>()});
  }
  auto set = engine::ComposeAdapters(shares, model.executor->limits().adapter_max_rank, 0);
  INFO(set.status().ToString());
  REQUIRE(set.ok());
  (*set)->id = engine::AdapterId{1};
  return {*set, 1.0f};
}

float MaxError(const json& golden, const std::vector<float>& logits) {
  const size_t vocab = logits.size() / golden["top"].size();
  float error = 0.0f;
  for (size_t t = 0; t < golden["top"].size(); ++t) {
    for (const json& best : golden["top"][t]) {
      const float difference = logits[t * vocab + best[0].get<size_t>()] - best[1].get<float>();
      error = std::max(error, std::isfinite(difference) ? std::abs(difference) : INFINITY);
    }
  }
  return error;
}

std::filesystem::path WriteGgufBase(const std::string& golden, const std::filesystem::path& file) {
  const std::vector<std::string> others = GgufModelNames();
  const bool converted = std::find(others.begin(), others.end(), golden) != others.end();
  return converted ? WriteGguf(LoadGgufModel(golden), file)
                   : WriteSyntheticGguf(LoadGolden(golden), kernels::DType::kF32, file);
}

std::vector<std::string> CaseNames(const json& goldens) {
  std::vector<std::string> names;
  for (const auto& [name, value] : goldens.items()) {
    if (value.is_object()) names.push_back(name);
  }
  return names;
}

}  // namespace heddle::test
