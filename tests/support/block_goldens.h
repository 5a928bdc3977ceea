// Random blocks of weight formats and hashes of what they decode to, as the generators in
// tests/golden/ make them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace heddle::test {

inline constexpr int64_t kGoldenBlocks = 64;

// The bytes that make_block_goldens.py makes for an entry of blocks.json.
inline std::vector<uint8_t> RandomBlocks(const std::string& name, const nlohmann::json& golden) {
  const auto size = golden["block_bytes"].get<size_t>();
  uint64_t state = 0;
  for (size_t i = 0; i < name.size(); ++i) state += static_cast<uint64_t>(name[i]) << (8 * i);
  std::vector<uint8_t> bytes(kGoldenBlocks * size);
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  for (size_t field : golden["fields"]) {
    for (size_t b = 0; b < kGoldenBlocks; ++b) bytes[b * size + field + 1] &= 0xbf;
  }
  return bytes;
}

// FNV-1a of the values' bits.
inline std::string HashOf(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(float); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace heddle::test
