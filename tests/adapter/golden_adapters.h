// Adapters that tests/golden/ describes, on tiny models by formula.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/adapter/load_adapter.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/greedy_runner.h"

namespace heddle::test {

// For a small model with adapters of up to rank 8, in F32.
engine::LoadOptions AdapterBaseOptions();
engine::LocalModel LoadAdapterBase(const std::filesystem::path& path,
                                   const engine::LoadOptions& options);
// The model at `path` on the reference ops ("reference") or a level of the CPU's.
engine::LocalModel LoadAdapterBase(const std::filesystem::path& path, const std::string& ops);

// The folder that PEFT would have saved: `adapter` has "config" and "tensors" of [name, shape,
// scale] or [name, shape, scale, offset].
std::filesystem::path WriteAdapter(const nlohmann::json& adapter, int bits,
                                   const std::filesystem::path& folder);

// The target that an adapter for the model at `base` must fit.
engine::AdapterTarget TargetOf(const engine::LocalModel& model, const std::filesystem::path& base);

// The adapter of a case of adapter_kinds.json, or its set.
RunAdapter LoadCase(const nlohmann::json& golden, int bits, const engine::LocalModel& model,
                    const std::filesystem::path& base, const std::filesystem::path& dir);

// Aborts the test case with the reader's message if it refuses.
RunAdapter LoadInto(const engine::LocalModel& model, const std::filesystem::path& base,
                    const std::filesystem::path& adapter);

// Largest difference to the best logits of each position that PEFT computed.
float MaxError(const nlohmann::json& golden, const std::vector<float>& logits);

// The base of the golden as llama.cpp's converter would have written it.
std::filesystem::path WriteGgufBase(const std::string& golden, const std::filesystem::path& file);

// The names of a file's cases.
std::vector<std::string> CaseNames(const nlohmann::json& goldens);

}  // namespace heddle::test
