// Writes the model of a golden to disk as users have it: a Hugging Face folder or a GGUF file.
#pragma once

#include <filesystem>

#include "kernels/dtype.h"
#include "tests/support/goldens.h"
#include "tests/support/safetensors_writer.h"

namespace heddle::test {

// The golden's tensors with their values, in its dtype.
std::vector<TensorToWrite> SyntheticTensors(const Golden& golden);

// config.json and model.safetensors, or shards with an index, in `folder` (made if need be).
// Returns `folder`. REQUIRES: !golden.gguf.
std::filesystem::path WriteSyntheticModel(const Golden& golden,
                                          const std::filesystem::path& folder);

// The same model as llama.cpp's converter would write it: metadata, GGUF names, rows of q and k
// permuted for llama, matrices in `dtype`, vectors in F32. Returns `path`.
// REQUIRES: a golden of family llama, mistral, qwen2 or qwen3, and rows of whole blocks.
std::filesystem::path WriteSyntheticGguf(const Golden& golden, kernels::DType dtype,
                                         const std::filesystem::path& path);

// Either of them, as the golden says, within `folder`. Returns the model's path.
std::filesystem::path WriteGoldenModel(const Golden& golden, const std::filesystem::path& folder);

}  // namespace heddle::test
