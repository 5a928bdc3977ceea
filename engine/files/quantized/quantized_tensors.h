// Finds the quantised matrices of a Hugging Face checkpoint and replaces the parts of each by one
// tensor.
//
// The formats are GPTQ (also with act-order), AWQ, compressed-tensors (packed and plain integers,
// FP8), FP8 with scales per tensor, channel, group or block, and NF4 of bitsandbytes. A matrix is
// recognised by its parts' names and types; config.json's `quantization_config` supplies the rest.
// Everything is checked here: types, shapes, counts of scales, orders of columns.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/files/quantized/tensor_set.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// Replaces the parts in `tensors` (sorted by name) by tensors that refer to `matrices`. `config` is
// the parsed config.json, `config_file` its path. UNIMPLEMENTED for a method, width or group that
// is not supported; INVALID_ARGUMENT for parts that are missing or do not fit together.
absl::Status GroupQuantizedTensors(const nlohmann::json& config, std::string_view config_file,
                                   const TensorSet::FileOf& file_of,
                                   std::vector<CheckpointTensor>* tensors,
                                   std::vector<std::unique_ptr<QuantizedMatrix>>* matrices);

using MatrixOr = absl::StatusOr<std::unique_ptr<QuantizedMatrix>>;

// The options of GPTQ and AWQ in config.json.
struct PackedOptions {
  int32_t bits = 4;
  int64_t group_size = 128;        // -1: the whole row
  bool zeros_are_one_less = true;  // GPTQ's first layout stores zero points minus one
};

// A block of elements that share a scale, where scales belong neither to rows nor to groups.
struct BlockShape {
  int64_t rows = 128;
  int64_t columns = 128;
};

// The readers, one per layout; `tensor` is the tensor of codes.
MatrixOr ReadGptq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set);
MatrixOr ReadAwq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set);
MatrixOr ReadPackedIntegers(const CheckpointTensor& tensor, TensorSet* set);
// For codes of type I8 or F8_E4M3.
MatrixOr ReadScaledMatrix(const CheckpointTensor& tensor, BlockShape block, TensorSet* set);
MatrixOr ReadNf4(const CheckpointTensor& tensor, TensorSet* set);

}  // namespace heddle::engine
