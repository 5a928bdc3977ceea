// The parts of quantised matrices as `quantization_config` of config.json names them. Everything
// that names a layout is checked here: a layout that no reader knows is an error, never taken for
// another one.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// The layouts of tensors named "...qweight" (GPTQ's marlin: "...B").
enum class PackedLayout : uint8_t { kGptq, kAwq, kAwqGemv, kAwqGemvFast, kMarlin };

// The options of packed integers.
struct PackedOptions {
  int32_t bits = 4;
  int64_t group_size = 128;        // -1: the whole row
  bool zeros_are_one_less = true;  // GPTQ's first layout stores zero points minus one
  bool differs = false;  // layers have bits and groups of their own, which their shapes tell
};

// A block of elements that share a scale, where scales belong neither to rows nor to groups.
struct BlockShape {
  int64_t rows = 128;
  int64_t columns = 128;
};

struct QuantizationConfig {
  PackedLayout layout = PackedLayout::kGptq;
  PackedOptions packed;
  BlockShape block;
  bool is_bitsandbytes = false;
  // Some group of compressed-tensors' layers has 8-bit integer inputs.
  bool has_int8_activations = false;
};

// `object` is the value of "quantization_config", `file` the path for messages. UNIMPLEMENTED for a
// method or layout that is not supported, with those that are; INVALID_ARGUMENT for values that
// nothing could mean.
absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(const nlohmann::json& object,
                                                          std::string_view file);

}  // namespace heddle::engine
