// Writes GGUF files for tests, valid ones and, since every part is settable, broken ones.
// Source: ggml's docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/files/gguf.h"

namespace heddle::test {

class GgufWriter {
 public:
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  uint64_t alignment = 32;    // of the data; written as metadata only by Alignment()
  int64_t extra_tensors = 0;  // added to the count in the header
  int64_t extra_metadata = 0;

  GgufWriter& Alignment(uint32_t bytes);
  GgufWriter& String(std::string_view key, std::string_view value);
  GgufWriter& U32(std::string_view key, uint32_t value);
  GgufWriter& F32(std::string_view key, float value);
  GgufWriter& Bool(std::string_view key, bool value);
  GgufWriter& Strings(std::string_view key, std::span<const std::string> values);
  GgufWriter& Ints(std::string_view key, std::span<const int32_t> values);
  GgufWriter& Floats(std::string_view key, std::span<const float> values);
  // Any value: `payload` is what follows the type.
  GgufWriter& Raw(std::string_view key, engine::GgufType type, std::string_view payload);

  // `shape` outermost first, as readers see it; `type` as in the file.
  GgufWriter& Tensor(std::string_view name, uint32_t type, std::span<const int64_t> shape,
                     std::span<const std::byte> data);
  // A tensor whose shape (innermost first), and offset are taken as they are, without data.
  GgufWriter& RawTensor(std::string_view name, uint32_t type, std::span<const uint64_t> dims,
                        uint64_t offset);

  std::string Bytes() const;

 private:
  std::string metadata_;
  std::string infos_;
  std::string data_;
  uint64_t num_metadata_ = 0;
  uint64_t num_tensors_ = 0;
};

}  // namespace heddle::test
