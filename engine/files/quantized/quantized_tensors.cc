#include "engine/files/quantized/quantized_tensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

// Values of quantization_config.quant_method. The family's reader reads mxfp4's tensors, this file
// the others.
constexpr std::array<std::string_view, 7> kMethods = {
    "gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "bitsandbytes", "mxfp4"};

std::string TextOr(const json& object, const char* key, const char* absent) {
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : absent;
}

int64_t IntegerOr(const json& object, const char* key, int64_t absent) {
  auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : absent;
}

class Grouper {
 public:
  Grouper(const json& quantization, std::string_view config_file, TensorSet* set)
      : config_(quantization), config_file_(config_file), set_(set) {}

  absl::Status ReadConfig() {
    method_ = TextOr(config_, "quant_method", "");
    if (!method_.empty() &&
        std::find(kMethods.begin(), kMethods.end(), method_) == kMethods.end()) {
      return Unsupported("quant_method", method_,
                         absl::StrJoin(kMethods.begin(), kMethods.end(), ", ", Append));
    }
    if (method_ == "gptq" || method_ == "awq") HEDDLE_RETURN_IF_ERROR(ReadPackedOptions());
    int8_activations_ = HasInt8Activations();
    auto block = config_.find("weight_block_size");
    if (block != config_.end() && block->is_array() && block->size() == 2 &&
        (*block)[0].is_number_integer() && (*block)[1].is_number_integer()) {
      block_ = {(*block)[0].get<int64_t>(), (*block)[1].get<int64_t>()};
    }
    if (block_.rows < 1 || block_.columns < 1) {
      return absl::InvalidArgumentError(
          base::StrCat(config_file_, ": \"weight_block_size\" must hold two positive sizes"));
    }
    return absl::OkStatus();
  }

  // nullptr if the tensor is no quantised matrix.
  MatrixOr Read(const CheckpointTensor& tensor) {
    const absl::string_view name = base::AbslView(tensor.name);
    if (absl::EndsWith(name, ".qweight")) {
      return method_ == "awq" ? ReadAwq(tensor, packed_, set_) : ReadGptq(tensor, packed_, set_);
    }
    if (absl::EndsWith(name, ".weight_packed")) return ReadPackedIntegers(tensor, set_);
    if (!absl::EndsWith(name, ".weight")) return nullptr;
    if (tensor.type_name == "I8" || tensor.type_name == "F8_E4M3") {
      for (const char* unused : {"input_scale", "output_scale", "input_zero_point"}) {
        set_->Find(std::string(tensor.name.substr(0, tensor.name.size() - 6)) + unused);
      }
      MatrixOr matrix = ReadScaledMatrix(tensor, block_, set_);
      if (matrix.ok()) (*matrix)->takes_int8_x = int8_activations_ && tensor.type_name == "I8";
      return matrix;
    }
    if (tensor.type_name == "U8" && method_ == "bitsandbytes") return ReadNf4(tensor, set_);
    return nullptr;
  }

 private:
  static void Append(std::string* out, std::string_view text) { out->append(text); }

  absl::Status Unsupported(std::string_view key, std::string_view value,
                           std::string_view supported) const {
    return absl::UnimplementedError(base::StrCat(config_file_, ": \"", key, "\" is ",
                                                 base::Quote(value), ", which is not supported; ",
                                                 "supported are ", supported));
  }

  // Whether some group of compressed-tensors' layers has 8-bit integer inputs.
  bool HasInt8Activations() const {
    auto groups = config_.find("config_groups");
    if (groups == config_.end() || !groups->is_object()) return false;
    return std::any_of(groups->begin(), groups->end(), [](const json& group) {
      if (!group.is_object() || !group.contains("input_activations")) return false;
      const json& inputs = group["input_activations"];
      return inputs.is_object() && TextOr(inputs, "type", "") == "int" &&
             IntegerOr(inputs, "num_bits", 0) == 8;
    });
  }

  // Refuses other kinds of values, which would otherwise be taken for missing ones.
  absl::Status CheckIntegers(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      auto it = config_.find(key);
      if (it == config_.end() || it->is_null() || it->is_number_integer()) continue;
      return absl::InvalidArgumentError(base::StrCat(
          config_file_, ": \"", key, "\" is ", it->dump().substr(0, 96), ", expected an integer"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPackedOptions() {
    HEDDLE_RETURN_IF_ERROR(CheckIntegers({"bits", "w_bit", "group_size", "q_group_size"}));
    packed_.bits = static_cast<int32_t>(
        std::clamp<int64_t>(IntegerOr(config_, "bits", IntegerOr(config_, "w_bit", 4)), 0, 64));
    packed_.group_size = IntegerOr(config_, "group_size", IntegerOr(config_, "q_group_size", 128));
    const std::string layout = method_ == "awq" ? TextOr(config_, "version", "gemm")
                                                : TextOr(config_, "checkpoint_format", "gptq");
    packed_.zeros_are_one_less = layout != "gptq_v2";
    if (method_ == "awq" && layout != "gemm" && layout != "GEMM") {
      return Unsupported("version", layout, "gemm");
    }
    if (method_ == "gptq" && layout != "gptq" && layout != "gptq_v2") {
      return Unsupported("checkpoint_format", layout, "gptq, gptq_v2");
    }
    return absl::OkStatus();
  }

  const json& config_;
  std::string_view config_file_;
  TensorSet* set_;
  std::string method_;
  PackedOptions packed_;
  BlockShape block_;
  bool int8_activations_ = false;
};

}  // namespace

absl::Status GroupQuantizedTensors(const json& config, std::string_view config_file,
                                   const TensorSet::FileOf& file_of,
                                   std::vector<CheckpointTensor>* tensors,
                                   std::vector<std::unique_ptr<QuantizedMatrix>>* matrices) {
  auto quantization = config.find("quantization_config");
  if (quantization == config.end()) quantization = config.find("compression_config");
  if (quantization == config.end() || !quantization->is_object()) return absl::OkStatus();
  TensorSet set(*tensors, file_of);
  Grouper grouper(*quantization, config_file, &set);
  HEDDLE_RETURN_IF_ERROR(grouper.ReadConfig());
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
