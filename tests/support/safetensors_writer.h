// Writes safetensors files for tests: valid ones, and parts for broken ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::test {

struct TensorToWrite {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

// A valid file of these tensors, in order.
std::string SafetensorsBytes(std::span<const TensorToWrite> tensors);

// A file with this header, however wrong, followed by `data`.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

void WriteFile(const std::filesystem::path& path, std::string_view bytes);

}  // namespace heddle::test
