// The tensors of an adapter's file, sorted into modules, before anything is known of the base.
// Private to engine/adapter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/load_adapter.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// Large memory in huge pages where the system grants them: touching it for the first time otherwise
// takes longer than converting an adapter.
struct OwnedBytes {
  std::shared_ptr<std::byte[]> data;
  size_t size = 0;

  std::span<const std::byte> span() const { return {data.get(), size}; }
};
// Zeros. RESOURCE_EXHAUSTED if the machine lacks the memory.
absl::StatusOr<OwnedBytes> AllocateBytes(int64_t size);

struct AdapterTensor {
  std::string name;
  kernels::DType dtype = kernels::DType::kF32;
  int64_t rows = 0;  // of all matrices of a stack; 1: a vector
  int64_t cols = 0;
  int64_t stack = 1;                // matrices, one above the other
  std::span<const std::byte> data;  // empty: there is no such tensor

  bool empty() const { return data.empty(); }
};

// A file's tensors of one module: factors, or a vector or a matrix in place of the base's.
struct AdapterModule {
  AdapterTensor a;  // [rank, in]; of stacked experts [n_experts * rank, in]
  AdapterTensor b;  // [out, rank]; of stacked experts [out, rank * n_experts] in PEFT's files (the
                    // experts of a rank are neighbours), [n_experts * out, rank] in GGUF files
  float scale = 1.0f;
  bool is_embedding = false;  // a is [rank, tokens], or [tokens, rank] in GGUF files
  AdapterTensor magnitude;    // [out]: DoRA
  AdapterTensor b_bias;       // [out]: lora_bias, added to B's product
  AdapterTensor weight;       // in place of the base's matrix, or of a norm's vector
  AdapterTensor bias;         // in place of the base's bias
  AdapterTensor base_weight;  // the base's own, which PEFT saves beside factors of embeddings

  bool has_factors() const { return !a.empty() || !b.empty(); }
};

class PeftConfig;

struct AdapterFile {
  std::string path;
  OwnedBytes bytes;  // of the tensors' file: a copy, since others may truncate the file
  bool is_gguf = false;
  std::string architecture;  // GGUF only
  // By the modules' names without PEFT's prefix: "model.layers.0.self_attn.q_proj", or
  // "blk.0.attn_q".
  std::map<std::string, AdapterModule, std::less<>> modules;
  std::shared_ptr<const PeftConfig> config;  // PEFT only: gives the modules' scales
  AdapterSummary summary;
};

// Reads and sorts the file's tensors; checks their shapes against each other, types, and that each
// A has its B. Errors as LoadAdapter's. `max_bytes`: of the file; 0: no limit.
absl::StatusOr<AdapterFile> ReadAdapterFile(const std::filesystem::path& path, int64_t max_bytes);

// Parts of it, for the two formats.
absl::StatusOr<AdapterFile> ReadPeftFolder(const std::filesystem::path& folder, int64_t max_bytes);
absl::StatusOr<AdapterFile> ReadGgufAdapter(const std::filesystem::path& path, int64_t max_bytes);

// The whole file; INVALID_ARGUMENT if it changes meanwhile, RESOURCE_EXHAUSTED above max_bytes.
absl::StatusOr<OwnedBytes> ReadWholeFile(const std::filesystem::path& path, int64_t max_bytes);

// Whether the tensors of each module fit each other: dimensions, rank, both factors there.
// INVALID_ARGUMENT names the module.
absl::Status CheckModules(const AdapterFile& file);

// The rank of a module's factors, whose experts are counted by `n_experts`.
int64_t RankOf(const AdapterModule& module, bool is_gguf, int64_t n_experts);

}  // namespace heddle::engine
