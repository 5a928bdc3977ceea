#include "engine/files/quantized/quantized_tensors.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/files/quantized/quantization_config.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

class Grouper {
 public:
  Grouper(const QuantizationConfig& config, TensorSet* set) : config_(config), set_(set) {}

  // nullptr if the tensor is no quantised matrix.
  MatrixOr Read(const CheckpointTensor& tensor) {
    const std::string_view name = tensor.name;
    if (config_.layout == PackedLayout::kMarlin && name.ends_with(".B")) {
      return ReadMarlin(tensor, set_);
    }
    if (name.ends_with(".qweight")) return ReadPacked(tensor);
    if (name.ends_with(".weight_packed")) {
      UseCompanions(name.substr(0, name.size() - 13));
      return tensor.type_name == "U8" ? ReadFp4(tensor, set_) : ReadPackedIntegers(tensor, set_);
    }
    if (!name.ends_with(".weight")) return nullptr;
    return ReadPlain(tensor, std::string(name.substr(0, name.size() - 6)));
  }

 private:
  MatrixOr ReadPacked(const CheckpointTensor& tensor) {
    switch (config_.layout) {
      case PackedLayout::kGptq:
        return ReadGptq(tensor, config_.packed, set_);
      case PackedLayout::kAwq:
        return ReadAwq(tensor, config_.packed, set_);
      case PackedLayout::kAwqGemv:
        return ReadAwqGemv(tensor, config_.packed, set_);
      case PackedLayout::kAwqGemvFast:
        return ReadAwqGemvFast(tensor, config_.packed, set_);
      case PackedLayout::kMarlin:
        break;
    }
    return ReadMarlin(tensor, set_);
  }

  // Codes that have the name of a plain weight. `module` ends in a dot.
  MatrixOr ReadPlain(const CheckpointTensor& tensor, const std::string& module) {
    const bool is_int8 = tensor.type_name == "I8";
    if (is_int8 && config_.is_bitsandbytes) return ReadLlmInt8(tensor, set_);
    if (tensor.type_name == "U8" && config_.is_bitsandbytes) return ReadFourBits(tensor, set_);
    const bool is_fp4 = tensor.type_name == "U8" && set_->Find(module + "weight_scale") != nullptr;
    if (!is_fp4 && !is_int8 && tensor.type_name != "F8_E4M3") return nullptr;
    UseCompanions(module);
    // Optimizer's AWQ divides the weights' columns by these numbers.
    if (const CheckpointTensor* scales = set_->Find(module + "pre_quant_scale")) {
      return set_->Error(*scales,
                         "multiplies activations, which is not supported: expected weights without "
                         "scales for columns");
    }
    if (is_fp4) return ReadFp4(tensor, set_);
    MatrixOr matrix = ReadScaledMatrix(tensor, config_.block, set_);
    if (matrix.ok()) (*matrix)->takes_int8_x = config_.has_int8_activations && is_int8;
    return matrix;
  }

  // Static scales of activations and of caches are not used.
  void UseCompanions(std::string_view module) {
    for (const char* unused : {"input_scale", "output_scale", "input_zero_point",
                               "input_global_scale", "k_scale", "v_scale"}) {
      set_->Find(std::string(module) + unused);
    }
  }

  const QuantizationConfig& config_;
  TensorSet* set_;
};

}  // namespace

absl::Status GroupQuantizedTensors(const json& config, std::string_view config_file,
                                   const TensorSet::FileOf& file_of,
                                   std::vector<CheckpointTensor>* tensors,
                                   std::vector<std::unique_ptr<QuantizedMatrix>>* matrices) {
  auto quantization = config.find("quantization_config");
  if (quantization == config.end()) quantization = config.find("compression_config");
  if (quantization == config.end() || !quantization->is_object()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const QuantizationConfig read,
                          ReadQuantizationConfig(*quantization, config_file));
  TensorSet set(*tensors, file_of);
  Grouper grouper(read, &set);
  std::vector<CheckpointTensor> grouped;
  std::vector<std::string_view> kept;
  for (const CheckpointTensor& tensor : *tensors) {
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<QuantizedMatrix> matrix, grouper.Read(tensor));
    if (matrix == nullptr) {
      kept.push_back(tensor.name);
      continue;
    }
    grouped.push_back({.name = matrix->name,
                       .type_name = matrix->type_name,
                       .dtype = matrix->dtype,
                       .shape = {matrix->rows, matrix->cols},
                       .data = matrix->code_bytes,
                       .quantized = matrix.get()});
    matrices->push_back(std::move(matrix));
  }
  for (CheckpointTensor& tensor : *tensors) {
    const bool is_part =
        !std::binary_search(kept.begin(), kept.end(), tensor.name) || set.IsUsed(tensor.name);
    if (!is_part) grouped.push_back(std::move(tensor));
  }
  *tensors = std::move(grouped);
  std::sort(tensors->begin(), tensors->end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return absl::OkStatus();
}

}  // namespace heddle::engine
