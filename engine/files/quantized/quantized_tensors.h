// Finds the quantised matrices of a Hugging Face checkpoint and replaces the parts of each by one
// tensor.
//
// The formats are GPTQ (also with act-order, and Marlin's), AWQ, compressed-tensors (packed and
// plain integers, FP8), FP8 with scales per tensor, channel, group or block, NVFP4, MXFP4, MXFP8,
// and bitsandbytes' NF4, FP4 and int8. A matrix is recognised by its parts' names and types;
// config.json's `quantization_config` supplies the rest. Everything is checked here: types, shapes,
// counts of scales, orders of columns. Matrices of GGUF files that the kernels take in other
// formats than the file's are read likewise.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantization_config.h"
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

// The same for GGUF: matrices of NVFP4, which have scales of their own, of the formats with grids
// (IQ1 to IQ3), TQ1_0, Q1_0 and Q2_0, also stacked ones.
absl::Status GroupGgufMatrices(const TensorSet::FileOf& file_of,
                               std::vector<CheckpointTensor>* tensors,
                               std::vector<std::unique_ptr<QuantizedMatrix>>* matrices);

using MatrixOr = absl::StatusOr<std::unique_ptr<QuantizedMatrix>>;

// The readers, one per layout; `tensor` is the tensor of codes.
MatrixOr ReadGptq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set);
MatrixOr ReadAwq(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set);
MatrixOr ReadAwqGemv(const CheckpointTensor& tensor, const PackedOptions& options, TensorSet* set);
MatrixOr ReadAwqGemvFast(const CheckpointTensor& tensor, const PackedOptions& options,
                         TensorSet* set);
MatrixOr ReadMarlin(const CheckpointTensor& tensor, TensorSet* set);
MatrixOr ReadPackedIntegers(const CheckpointTensor& tensor, TensorSet* set);
// For codes of type I8 or F8_E4M3.
MatrixOr ReadScaledMatrix(const CheckpointTensor& tensor, BlockShape block, TensorSet* set);
// bitsandbytes: codes of type I8, or of four bits in U8 (NF4, FP4).
MatrixOr ReadLlmInt8(const CheckpointTensor& tensor, TensorSet* set);
MatrixOr ReadFourBits(const CheckpointTensor& tensor, TensorSet* set);
// NVFP4 and MXFP4.
MatrixOr ReadFp4(const CheckpointTensor& tensor, TensorSet* set);
// GGUF's. ReadGgufCodes: nullptr if the kernels take the type as it is, or not at all.
MatrixOr ReadGgufNvfp4(const CheckpointTensor& tensor, TensorSet* set);
std::unique_ptr<QuantizedMatrix> ReadGgufCodes(const CheckpointTensor& tensor);

}  // namespace heddle::engine
