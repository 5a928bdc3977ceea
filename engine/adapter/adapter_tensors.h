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
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data;  // empty: there is no such tensor

  bool empty() const { return data.empty(); }
};

// One linear's pair of factors.
struct AdapterModule {
  AdapterTensor a;  // [rank, in]
  AdapterTensor b;  // [out, rank]
  float scale = 1.0f;
};

struct AdapterFile {
  std::string path;
  OwnedBytes bytes;  // of the tensors' file: a copy, since others may truncate the file
  bool is_gguf = false;
  std::string architecture;  // GGUF only
  // By the modules' names without PEFT's prefix: "model.layers.0.self_attn.q_proj", or
  // "blk.0.attn_q".
  std::map<std::string, AdapterModule, std::less<>> modules;
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

// Whether the factors fit each other: dimensions, rank, both there. INVALID_ARGUMENT names the
// module.
absl::Status CheckModules(const AdapterFile& file);

}  // namespace heddle::engine
