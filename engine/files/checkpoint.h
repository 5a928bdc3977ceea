// A model on disk, whatever its format: a table of named, memory-mapped tensors and the metadata
// beside them. Knows formats, no architecture: engine/family/model_description.h gives names a
// meaning.
//
// Formats: a Hugging Face folder (config.json and model.safetensors, single or sharded by
// model.safetensors.index.json, or medusa_lm_head.safetensors; also quantised, see
// quantized/quantized_tensors.h) and GGUF v2/v3 (a file, or the first of a split model). Ownership:
// a Checkpoint owns its mappings; names and spans live as long as it does, also across moves.
// Thread-safety: immutable after OpenCheckpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/gguf.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

class QuantizedMatrix;

struct CheckpointTensor {
  std::string_view name;
  std::string_view type_name;  // as the file calls it: "BF16", "Q4_K", "I64"
  // Absent if the kernels do not compute with that type: such a tensor may be in a file (a mask
  // buffer, say), and is an error only if a model asks for it; see UnsupportedType.
  std::optional<kernels::DType> dtype;
  std::vector<int64_t> shape;  // outermost first: a matrix is [rows, cols], rows contiguous
  std::span<const std::byte> data;
  // A matrix of codes with companion tensors in the file, or nullptr; `data` then holds its codes
  // and not rows of `dtype`.
  const QuantizedMatrix* quantized = nullptr;

  int64_t bytes() const;  // as rows of `dtype`
};

// The total of all tensors of one type, for `heddle inspect` and start-up lines.
struct TypeUsage {
  std::string_view type_name;
  bool supported = false;
  int64_t num_tensors = 0;
  int64_t num_elements = 0;
  int64_t bytes = 0;
};

enum class CheckpointFormat : uint8_t { kHuggingFace, kGguf };

class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& path() const;  // as given to OpenCheckpoint
  CheckpointFormat format() const;

  std::span<const CheckpointTensor> tensors() const;          // sorted by name
  const CheckpointTensor* Find(std::string_view name) const;  // nullptr if absent; O(log n)
  int64_t total_bytes() const;                                // of all tensors
  std::vector<TypeUsage> types() const;                       // by bytes, largest first

  // Hugging Face: the parsed config.json, and generation_config.json or an empty object.
  // GGUF: empty objects.
  const nlohmann::json& config() const;
  const nlohmann::json& generation_config() const;

  // GGUF: the file with the metadata (the first of a split model). Hugging Face: nullptr.
  const GgufFile* gguf() const;

  // Hints to the kernel: a tensor is about to be read, or has been packed elsewhere and may leave
  // memory.
  void WillNeed(const CheckpointTensor& tensor) const;
  void DontNeed(const CheckpointTensor& tensor) const;

  // From now on the tensor is read from `rows`, or from `data`, instead of its file. REQUIRES: it
  // is there, and nothing reads it meanwhile; the type and the shape are the same, but that a
  // matrix may get another number of rows.
  void ReplaceRows(std::string_view name, std::unique_ptr<QuantizedMatrix> rows);
  void ReplaceData(std::string_view name, std::vector<std::byte> data);

 private:
  friend absl::StatusOr<Checkpoint> OpenCheckpoint(const std::filesystem::path& path);
  struct Storage;
  explicit Checkpoint(std::unique_ptr<Storage> storage);

  std::unique_ptr<Storage> storage_;
};

// Opens a folder or a .gguf file. It reads headers only, which takes milliseconds whatever the
// size. NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT; the message names the file, and says what
// to do if the path is another common kind (PyTorch pickles, a bare .safetensors file).
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::filesystem::path& path);

// The error for a tensor without a dtype: names file, tensor, type, and the supported types.
absl::Status UnsupportedType(const Checkpoint& checkpoint, const CheckpointTensor& tensor);

// The tensor as a matrix: rows are all dimensions but the last. REQUIRES: it has a dtype.
kernels::WeightSource SourceOf(const CheckpointTensor& tensor);

// The kernels' type of that name in safetensors or GGUF files, if there is one.
std::optional<kernels::DType> FindDType(std::string_view type_name);

}  // namespace heddle::engine
