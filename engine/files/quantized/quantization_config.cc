#include "engine/files/quantized/quantization_config.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;
using Names = std::span<const std::string_view>;

// Values of quant_method. The family's reader reads mxfp4's tensors, this folder the others.
constexpr std::string_view kMethods[] = {
    "gptq",  "awq",   "compressed-tensors", "fp8",          "fbgemm_fp8", "bitsandbytes",
    "mxfp4", "mxfp8", "modelopt",           "modelopt_fp4", "auto-round"};
// Layouts of compressed-tensors; "dense" and "mixed-precision" are no layout of their own.
constexpr std::string_view kCompressedFormats[] = {
    "pack-quantized",  "int-quantized",        "float-quantized",
    "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp8-quantized", "mixed-precision",      "dense"};
constexpr std::string_view kModeloptAlgorithms[] = {"FP8",
                                                    "FP8_PER_CHANNEL_PER_TOKEN",
                                                    "FP8_PB_WO",
                                                    "NVFP4",
                                                    "W4A16_NVFP4",
                                                    "MXFP8",
                                                    "MIXED_PRECISION"};
constexpr std::string_view kGptqFormats[] = {"gptq", "gptq_v2", "marlin"};
constexpr std::string_view kAwqVersions[] = {"gemm", "gemv", "gemv_fast", "marlin"};
constexpr std::string_view kAutoRoundFormats[] = {
    "auto_round:auto_gptq", "auto_round:gptq",     "auto_round",
    "auto_round:gptqmodel", "auto_round:auto_awq", "auto_round:llm_compressor"};

std::string TextOr(const json& object, const char* key, const std::string& absent) {
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : absent;
}

int64_t IntegerOr(const json& object, const char* key, int64_t absent) {
  auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : absent;
}

// Whether the key's value is an object with members, `true`, or another value that says something.
bool IsSet(const json& object, const char* key) {
  auto it = object.find(key);
  if (it == object.end() || it->is_null()) return false;
  if (it->is_boolean()) return it->get<bool>();
  return !it->is_structured() || !it->empty();
}

bool IsOneOf(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Reader {
 public:
  Reader(const json& object, std::string_view file) : object_(object), file_(file) {}

  absl::StatusOr<QuantizationConfig> Read() {
    HEDDLE_ASSIGN_OR_RETURN(const std::string method, OneOf(object_, "quant_method", "", kMethods));
    HEDDLE_RETURN_IF_ERROR(ReadMethod(method));
    read_.is_bitsandbytes = method == "bitsandbytes";
    read_.has_int8_activations = HasInt8Activations();
    HEDDLE_RETURN_IF_ERROR(ReadBlock());
    return read_;
  }

 private:
  absl::Status ReadMethod(const std::string& method) {
    if (method == "gptq") return ReadGptq();
    if (method == "awq") return ReadAwq();
    if (method == "auto-round") return ReadAutoRound();
    if (method == "compressed-tensors") return CheckCompressedTensors();
    if (method.starts_with("modelopt")) return CheckModelopt();
    return absl::OkStatus();
  }

  absl::Status Unsupported(std::string_view key, std::string_view value,
                           std::string_view supported) const {
    return absl::UnimplementedError(base::StrCat(file_, ": \"", key, "\" is ", base::Quote(value),
                                                 ", which is not supported; supported are ",
                                                 supported));
  }

  // The key's text, which must be one of `names`; `absent` if it is not there or null.
  absl::StatusOr<std::string> OneOf(const json& object, const char* key, const std::string& absent,
                                    Names names) const {
    auto it = object.find(key);
    if (it == object.end() || it->is_null()) return absent;
    const std::string value = it->is_string() ? it->get<std::string>() : it->dump();
    if (it->is_string() && IsOneOf(names, value)) return value;
    return Unsupported(key, value.substr(0, 96),
                       absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) {
                         out->append(name);
                       }));
  }

  // Refuses other kinds of values, which would otherwise be taken for missing ones.
  absl::Status CheckIntegers(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      auto it = object_.find(key);
      if (it == object_.end() || it->is_null() || it->is_number_integer()) continue;
      return absl::InvalidArgumentError(base::StrCat(
          file_, ": \"", key, "\" is ", it->dump().substr(0, 96), ", expected an integer"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPackedOptions() {
    HEDDLE_RETURN_IF_ERROR(CheckIntegers({"bits", "w_bit", "group_size", "q_group_size"}));
    PackedOptions& packed = read_.packed;
    packed.bits = static_cast<int32_t>(
        std::clamp<int64_t>(IntegerOr(object_, "bits", IntegerOr(object_, "w_bit", 4)), 0, 64));
    packed.group_size =
        IntegerOr(object_, "group_size", IntegerOr(object_, "q_group_size", packed.group_size));
    return absl::OkStatus();
  }

  // Marlin's kernel has neither zero points nor an order of columns.
  absl::Status CheckMarlin() const {
    if (IsSet(object_, "desc_act")) return Unsupported("desc_act", "true", "false with marlin");
    auto symmetric = object_.find("sym");
    if (symmetric != object_.end() && symmetric->is_boolean() && !symmetric->get<bool>()) {
      return Unsupported("sym", "false", "true with marlin");
    }
    return absl::OkStatus();
  }

  absl::Status ReadGptq() {
    HEDDLE_RETURN_IF_ERROR(ReadPackedOptions());
    const char* key = object_.contains("checkpoint_format") ? "checkpoint_format" : "format";
    HEDDLE_ASSIGN_OR_RETURN(std::string format, OneOf(object_, key, "gptq", kGptqFormats));
    // AutoGPTQ wrote this before the format had a key.
    if (IsSet(object_, "is_marlin_format")) format = "marlin";
    read_.packed.zeros_are_one_less = format != "gptq_v2";
    read_.packed.differs = IsSet(object_, "dynamic");
    if (format != "marlin") return absl::OkStatus();
    read_.layout = PackedLayout::kMarlin;
    return CheckMarlin();
  }

  absl::Status ReadAwq() {
    HEDDLE_RETURN_IF_ERROR(ReadPackedOptions());
    json lowered = {{"version", nullptr}};
    for (const char* key : {"format", "version"}) {
      auto it = object_.find(key);
      if (it == object_.end() || it->is_null()) continue;
      lowered["version"] =
          it->is_string() ? json(absl::AsciiStrToLower(it->get<std::string>())) : *it;
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::string version,
                            OneOf(lowered, "version", "gemm", kAwqVersions));
    read_.layout = version == "gemv"        ? PackedLayout::kAwqGemv
                   : version == "gemv_fast" ? PackedLayout::kAwqGemvFast
                   : version == "marlin"    ? PackedLayout::kMarlin
                                            : PackedLayout::kAwq;
    return absl::OkStatus();
  }

  // auto-round writes the layouts of others; "extra_config" gives layers bits of their own.
  absl::Status ReadAutoRound() {
    HEDDLE_RETURN_IF_ERROR(ReadPackedOptions());
    HEDDLE_ASSIGN_OR_RETURN(const std::string format,
                            OneOf(object_, "packing_format", "auto_round:gptq", kAutoRoundFormats));
    if (format == "auto_round:llm_compressor") return absl::OkStatus();
    static constexpr std::string_view kIntegers[] = {"int"};
    HEDDLE_RETURN_IF_ERROR(OneOf(object_, "data_type", "int", kIntegers).status());
    if (format == "auto_round:auto_awq") read_.layout = PackedLayout::kAwq;
    read_.packed.zeros_are_one_less = format != "auto_round" && format != "auto_round:gptqmodel";
    read_.packed.differs = true;
    return absl::OkStatus();
  }

  absl::Status CheckCompressedTensors() const {
    HEDDLE_RETURN_IF_ERROR(OneOf(object_, "format", "", kCompressedFormats).status());
    if (IsSet(object_, "transform_config")) {
      return Unsupported("transform_config", "set", "models without rotations");
    }
    auto sparsity = object_.find("sparsity_config");
    if (sparsity != object_.end() && sparsity->is_object()) {
      static constexpr std::string_view kDense[] = {"dense"};
      HEDDLE_RETURN_IF_ERROR(OneOf(*sparsity, "format", "dense", kDense).status());
    }
    auto groups = object_.find("config_groups");
    if (groups == object_.end() || !groups->is_object()) return absl::OkStatus();
    for (const json& group : *groups) {
      if (!group.is_object()) continue;
      HEDDLE_RETURN_IF_ERROR(OneOf(group, "format", "", kCompressedFormats).status());
    }
    return absl::OkStatus();
  }

  // The algorithm of all layers, or, under MIXED_PRECISION, of each.
  absl::Status CheckModelopt() const {
    const json* object = &object_;
    auto nested = object_.find("quantization");
    if (nested != object_.end() && nested->is_object()) object = &*nested;
    HEDDLE_RETURN_IF_ERROR(CheckAlgorithm(*object));
    auto layers = object->find("quantized_layers");
    if (layers == object->end() || !layers->is_object()) return absl::OkStatus();
    for (const json& layer : *layers) {
      if (layer.is_object()) HEDDLE_RETURN_IF_ERROR(CheckAlgorithm(layer));
    }
    return absl::OkStatus();
  }

  absl::Status CheckAlgorithm(const json& object) const {
    constexpr const char* kKey = "quant_algo";
    auto it = object.find(kKey);
    if (it == object.end() || !it->is_string()) {
      return OneOf(object, kKey, "", kModeloptAlgorithms).status();
    }
    const json upper = {{kKey, absl::AsciiStrToUpper(it->get<std::string>())}};
    return OneOf(upper, kKey, "", kModeloptAlgorithms).status();
  }

  bool HasInt8Activations() const {
    auto groups = object_.find("config_groups");
    if (groups == object_.end() || !groups->is_object()) return false;
    return std::any_of(groups->begin(), groups->end(), [](const json& group) {
      if (!group.is_object() || !group.contains("input_activations")) return false;
      const json& inputs = group["input_activations"];
      return inputs.is_object() && TextOr(inputs, "type", "") == "int" &&
             IntegerOr(inputs, "num_bits", 0) == 8;
    });
  }

  absl::Status ReadBlock() {
    auto block = object_.find("weight_block_size");
    if (block != object_.end() && block->is_array() && block->size() == 2 &&
        (*block)[0].is_number_integer() && (*block)[1].is_number_integer()) {
      read_.block = {(*block)[0].get<int64_t>(), (*block)[1].get<int64_t>()};
    }
    if (read_.block.rows >= 1 && read_.block.columns >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        base::StrCat(file_, ": \"weight_block_size\" must hold two positive sizes"));
  }

  const json& object_;
  std::string_view file_;
  QuantizationConfig read_;
};

}  // namespace

absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(const json& object,
                                                          std::string_view file) {
  return Reader(object, file).Read();
}

}  // namespace heddle::engine
