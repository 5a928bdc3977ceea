// Finds PTX in the fat binaries that nvcc embeds in host objects. NVIDIA documents how they are
// made (the tool fatbinary) but not how they are laid out: the fields that are read here, and no
// others, were told by what nvcc 13.0 writes for one source with and without each option. All of a
// container's sizes are checked; nothing outside it is read.
//
//   container  magic u32, version u16 (1), header's bytes u16 (16), bytes behind the header u64
//   entry      kind u16, version u16, header's bytes u32, payload's bytes u64, compressed bytes
//   u32,
//              u32, minor u16, major u16, architecture u32, name at u32, name's bytes u32, flags
//              u64
//   payload    8-byte aligned; of PTX: text, then zeros
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::ptx {

struct FatbinEntry {
  static constexpr uint16_t kPtx = 1;
  static constexpr uint16_t kElf = 2;
  uint16_t kind = 0;
  int32_t architecture = 0;  // 90 for sm_90 and sm_90a
  bool is_compressed = false;
  std::string_view payload;  // of PTX: without the zeros
};

// The container behind what objects pass to __cudaRegisterFatBinary, as long as its header says.
// INVALID_ARGUMENT if either has not the magic number or the version that it should have.
absl::StatusOr<std::span<const uint8_t>> ContainerOf(const void* wrapper);

// Views into `container`. INVALID_ARGUMENT for what is no container, or not whole.
absl::StatusOr<std::vector<FatbinEntry>> ReadFatbin(std::span<const uint8_t> container);

// PTX for the newest architecture up to `architecture`. NOT_FOUND if there is none; UNIMPLEMENTED
// if it is compressed (nvcc --no-compress leaves it as it is).
absl::StatusOr<std::string_view> FindPtx(std::span<const FatbinEntry> entries,
                                         int32_t architecture);

}  // namespace heddle::ptx
