// Any bytes as the config and tensors of a quantised folder: grouped, and every row read. The input
// is a safetensors file, before it one byte that chooses the method and its layout and one that
// chooses bits and a group.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantized_tensors.h"
#include "engine/files/safetensors.h"
#include "nlohmann/json.hpp"

namespace {

using heddle::engine::CheckpointTensor;
using heddle::engine::QuantizedMatrix;

// Rows are decoded one by one; a few of a huge matrix will do.
constexpr int64_t kMaxRows = 64;
constexpr int64_t kMaxColumns = int64_t{1} << 20;

void ReadAll(const QuantizedMatrix& matrix) {
  if (matrix.cols > kMaxColumns) return;
  std::vector<uint8_t> row(
      static_cast<size_t>(heddle::kernels::RowBytes(matrix.dtype, matrix.cols)));
  for (int64_t r = 0; r < matrix.rows && r < kMaxRows; ++r) matrix.ReadRows(r, 1, row.data());
  matrix.CheckCodes().IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr const char* kConfigs[][3] = {
      {"gptq", "desc_act", ""},
      {"awq", "version", "gemm"},
      {"compressed-tensors", "format", "dense"},
      {"fp8", "scale_fmt", "ue8m0"},
      {"bitsandbytes", "bnb_4bit_quant_type", "nf4"},
      {"gptq", "checkpoint_format", "marlin"},
      {"gptq", "dynamic", "all"},
      {"awq", "version", "gemv"},
      {"awq", "version", "gemv_fast"},
      {"awq", "version", "marlin"},
      {"auto-round", "packing_format", "auto_round"},
      {"auto-round", "packing_format", "auto_round:auto_awq"},
      {"modelopt", "quant_algo", "MIXED_PRECISION"}};
  static constexpr int kGroups[] = {-1, 32, 64, 128, 7, 0};
  if (size < 2) return 0;
  const auto& [method, key, value] = kConfigs[data[0] % std::size(kConfigs)];
  const nlohmann::json config = {{"quantization_config",
                                  {{"quant_method", method},
                                   {key, value},
                                   {"bits", data[1] / 6 % 12},
                                   {"group_size", kGroups[data[1] % 6]}}}};
  auto file =
      heddle::engine::SafetensorsFile::Parse(std::as_bytes(std::span(data + 2, size - 2)), "fuzz");
  if (!file.ok()) return 0;
  std::vector<CheckpointTensor> tensors;
  for (const auto& tensor : file->tensors()) {
    tensors.push_back({tensor.name, tensor.type->name, heddle::engine::FindDType(tensor.type->name),
                       tensor.shape, tensor.data});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<std::unique_ptr<QuantizedMatrix>> matrices;
  auto status = heddle::engine::GroupQuantizedTensors(
      config, "config.json", [](const CheckpointTensor&) { return std::string("fuzz"); }, &tensors,
      &matrices);
  if (!status.ok()) return 0;
  for (const auto& matrix : matrices) ReadAll(*matrix);
  return 0;
}
