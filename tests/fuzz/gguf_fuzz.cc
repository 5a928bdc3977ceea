// Any bytes as a GGUF file: parse it, read every key as every type, touch every tensor's ends, and
// describe the model that it claims to hold.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/family/describe.h"
#include "engine/files/checkpoint.h"
#include "engine/files/gguf.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace {

using heddle::engine::CheckpointTensor;
using heddle::engine::GgufFile;

volatile size_t sink;  // keeps reads alive

void ReadKeys(const GgufFile& file) {
  size_t total = 0;
  for (std::string_view key : file.keys()) {
    total += file.Int(key).ok() + file.Float(key).ok() + file.Bool(key).ok();
    if (auto text = file.String(key); text.ok()) total += std::string(*text).size();
    if (auto texts = file.Strings(key); texts.ok()) {
      for (std::string_view text : *texts) total += std::string(text).size();
    }
    if (auto ints = file.Ints(key); ints.ok()) total += ints->size();
    if (auto floats = file.Floats(key); floats.ok()) total += floats->size();
  }
  sink = total;
}

// Finds matrices that are read into other formats, and reads a few rows of each matrix.
void ReadMatrices(const GgufFile& file) {
  std::vector<CheckpointTensor> tensors;
  for (const auto& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.type->name, heddle::engine::FindDType(tensor.type->name),
                       tensor.shape, tensor.data});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<std::unique_ptr<heddle::engine::QuantizedMatrix>> matrices;
  const auto status = heddle::engine::GroupGgufMatrices(
      [](const CheckpointTensor&) { return std::string("fuzz"); }, &tensors, &matrices);
  if (!status.ok()) return;
  constexpr int64_t kMaxColumns = int64_t{1} << 20;
  for (const auto& matrix : matrices) {
    if (matrix->cols > kMaxColumns) continue;
    std::vector<uint8_t> row(
        static_cast<size_t>(heddle::kernels::RowBytes(matrix->dtype, matrix->cols)));
    for (const int64_t r : {int64_t{0}, matrix->rows - 1}) matrix->ReadRows(r, 1, row.data());
    sink = row.back();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file.ok()) return 0;
  ReadKeys(*file);
  ReadMatrices(*file);
  std::map<std::string_view, CheckpointTensor> tensors;
  for (const auto& tensor : file->tensors()) {
    if (!tensor.data.empty()) {
      sink = std::to_integer<size_t>(tensor.data.front()) +
             std::to_integer<size_t>(tensor.data.back());
    }
    tensors[tensor.name] = {tensor.name, tensor.type->name,
                            heddle::engine::FindDType(tensor.type->name), tensor.shape,
                            tensor.data};
  }
  auto find = [&](std::string_view name) -> const CheckpointTensor* {
    auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  };
  auto description = heddle::engine::DescribeGguf(*file, find);
  if (description.ok() && description->spec.layers[0].attention.rope.rotary_dim > 0) {
    sink = heddle::engine::InverseFrequencies(description->spec.layers[0].attention.rope).size();
  }
  return 0;
}
