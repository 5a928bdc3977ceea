// Reads GGUF files (versions 2 and 3, little-endian): typed metadata and a table of tensors, both
// as views into the file. Checks everything that the file claims; decodes no tensor.
//
// Source: "GGUF" specification, github.com/ggml-org/ggml/blob/master/docs/gguf.md.
// Ownership: a GgufFile owns its mapping; every string_view and span that it hands out lives as
// long as it does, also across moves. Thread-safety: immutable after Open.
// Limits: at most 4 dimensions per tensor and 4 levels of nested arrays; names and keys as the
// specification bounds them. Counts are checked against the size of the file before memory is
// taken, so a lying header costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/mapped_file.h"

namespace heddle::engine {

// Type of a metadata value; numbers as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view Name(GgufType type);

// Storage of a ggml tensor type: `block_elements` consecutive elements of a row take `block_bytes`.
struct GgmlTypeInfo {
  uint32_t id;  // as in the file
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
};

// nullptr if this reader does not know the type.
const GgmlTypeInfo* FindGgmlType(uint32_t id);

struct GgufTensor {
  std::string_view name;
  const GgmlTypeInfo* type = nullptr;
  // Outermost dimension first, as in safetensors and numpy: the reverse of the file's order, so
  // that a matrix is [rows, cols] with contiguous rows.
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  // Every error message begins with the path and says at which byte or key the file is wrong.
  static absl::StatusOr<GgufFile> Open(const std::filesystem::path& path);

  // The same for bytes that outlive the result; messages name them `name`.
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }

  bool Has(std::string_view key) const { return metadata_.contains(key); }
  std::vector<std::string_view> keys() const;  // sorted

  // Typed metadata. NOT_FOUND if the key is absent, INVALID_ARGUMENT if it holds something else;
  // the message names file, key, type found and type expected. Int accepts every integer type,
  // Float every number.
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<int64_t> Int(std::string_view key) const;
  absl::StatusOr<double> Float(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;

  // Arrays of strings (views into the file), of integers (any integer type or bool), and of
  // numbers. O(length).
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;

  // The same with a default for an absent key; a key of the wrong type is still an error.
  absl::StatusOr<std::string_view> StringOr(std::string_view key, std::string_view absent) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t absent) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;

  // Whether the key holds an array, and its number of elements (0 if it is no array).
  bool IsArray(std::string_view key) const;
  int64_t ArrayLength(std::string_view key) const;

  // Tensors in file order.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;  // nullptr if absent

  const MappedFile& mapping() const { return mapping_; }  // empty after Parse

 private:
  friend class GgufParser;

  struct Value {
    GgufType type = GgufType::kU8;
    GgufType element_type = GgufType::kU8;  // of arrays
    uint64_t count = 1;                     // elements of an array, bytes of a string
    std::span<const std::byte> bytes;       // payload after lengths and types
  };

  GgufFile() = default;
  absl::StatusOr<const Value*> Find(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const Value& value, std::string_view expected) const;

  MappedFile mapping_;
  std::string name_;
  uint32_t version_ = 0;
  std::map<std::string_view, Value> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t> tensor_index_;
};

}  // namespace heddle::engine
