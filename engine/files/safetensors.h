// Reads one safetensors file: a JSON table of tensors followed by their bytes, mapped and checked.
//
// Source: "Safetensors" format, github.com/huggingface/safetensors (README, section Format). Like
// the reference reader, it refuses files whose tensors overlap, leave holes or do not cover all
// bytes after the header.
// Ownership: a SafetensorsFile owns its mapping; spans live as long as it does, also across moves.
// Thread-safety: immutable after Open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/mapped_file.h"

namespace heddle::engine {

struct SafetensorsType {
  std::string_view name;  // as in the file, e.g. "BF16"
  int32_t bits;           // per element
};

struct SafetensorsTensor {
  std::string name;
  const SafetensorsType* type = nullptr;
  std::vector<int64_t> shape;  // outermost first; empty: a scalar
  std::span<const std::byte> data;
};

class SafetensorsFile {
 public:
  // Limit on the header's JSON, the reference reader's.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

  // Every error message begins with the path and names the tensor and what is wrong with it.
  static absl::StatusOr<SafetensorsFile> Open(const std::filesystem::path& path);

  // The same for bytes that outlive the result; messages name them `name`.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  // The tensors in the order of their bytes in the file.
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  const MappedFile& mapping() const { return mapping_; }  // empty after Parse

 private:
  SafetensorsFile() = default;

  MappedFile mapping_;
  std::string name_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace heddle::engine
