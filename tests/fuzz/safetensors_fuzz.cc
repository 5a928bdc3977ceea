// Any bytes as a safetensors file: parse it and touch the ends of every tensor.
#include <cstdint>

#include "engine/files/safetensors.h"

namespace {
volatile size_t sink;  // keeps reads alive
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = heddle::engine::SafetensorsFile::Parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) return 0;
  for (const auto& tensor : file->tensors()) {
    if (tensor.data.empty()) continue;
    sink =
        std::to_integer<size_t>(tensor.data.front()) + std::to_integer<size_t>(tensor.data.back());
  }
  return 0;
}
