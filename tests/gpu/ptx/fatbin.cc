#include "tests/gpu/ptx/fatbin.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::ptx {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;  // FATBINC_MAGIC of fatbinary_section.h
constexpr uint32_t kMagic = 0xBA55ED50;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kEntryBytes = 64;      // more where it names the source or options
constexpr uint64_t kLz4Flag = 0x2000;   // --compress-mode=speed
constexpr uint64_t kZstdFlag = 0x8000;  // --compress-mode=size, balance and default

// __fatBinC_Wrapper_t of fatbinary_section.h.
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const uint8_t* data;
  const void* prelinked;
};

template <typename T>
T ReadAt(std::span<const uint8_t> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

absl::Status CheckHeader(std::span<const uint8_t> bytes) {
  const auto magic = ReadAt<uint32_t>(bytes, 0);
  const auto version = ReadAt<uint16_t>(bytes, 4);
  const auto header_bytes = ReadAt<uint16_t>(bytes, 6);
  if (magic == kMagic && version == 1 && header_bytes == kHeaderBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a fat binary begins with ", absl::Hex(magic), ", version ", version, ", header of ",
      header_bytes, " bytes; known are ", absl::Hex(kMagic), ", version 1, 16 bytes"));
}

absl::Status NotWhole(size_t at, uint64_t bytes, size_t left) {
  return absl::InvalidArgumentError(absl::StrCat("a fat binary's entry at ", at, " claims ", bytes,
                                                 " bytes where ", left, " are left"));
}

// Takes an entry off the front of `*rest`, which begins at `at` in the container.
absl::StatusOr<FatbinEntry> TakeEntry(size_t at, std::span<const uint8_t>* rest) {
  if (rest->size() < kEntryBytes) return NotWhole(at, kEntryBytes, rest->size());
  const auto header_bytes = ReadAt<uint32_t>(*rest, 4);
  const auto payload_bytes = ReadAt<uint64_t>(*rest, 8);
  if (header_bytes < kEntryBytes || header_bytes > rest->size()) {
    return NotWhole(at, header_bytes, rest->size());
  }
  if (payload_bytes > rest->size() - header_bytes) {
    return NotWhole(at, payload_bytes, rest->size() - header_bytes);
  }
  const std::span<const uint8_t> payload = rest->subspan(header_bytes, payload_bytes);
  FatbinEntry entry = {.kind = ReadAt<uint16_t>(*rest, 0),
                       .architecture = ReadAt<int32_t>(*rest, 28),
                       .is_compressed = (ReadAt<uint64_t>(*rest, 40) & (kLz4Flag | kZstdFlag)) != 0,
                       .payload = {reinterpret_cast<const char*>(payload.data()), payload.size()}};
  if (entry.kind == FatbinEntry::kPtx && !entry.is_compressed) {
    entry.payload = entry.payload.substr(0, entry.payload.find_last_not_of('\0') + 1);
  }
  *rest = rest->subspan(header_bytes + payload_bytes);
  return entry;
}

}  // namespace

absl::StatusOr<std::span<const uint8_t>> ContainerOf(const void* wrapper) {
  Wrapper read;
  std::memcpy(&read, wrapper, sizeof(read));
  if (read.magic != kWrapperMagic || read.version != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a registered fat binary has magic number ", absl::Hex(read.magic),
                     " and version ", read.version, "; known are ", absl::Hex(kWrapperMagic),
                     " and 1 (2 is of relocatable device code)"));
  }
  const std::span<const uint8_t> header(read.data, kHeaderBytes);
  HEDDLE_RETURN_IF_ERROR(CheckHeader(header));
  return std::span<const uint8_t>(read.data, kHeaderBytes + ReadAt<uint64_t>(header, 8));
}

absl::StatusOr<std::vector<FatbinEntry>> ReadFatbin(std::span<const uint8_t> container) {
  if (container.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fat binary of ", container.size(), " bytes has no header"));
  }
  HEDDLE_RETURN_IF_ERROR(CheckHeader(container));
  std::span<const uint8_t> rest = container.subspan(kHeaderBytes);
  const auto bytes = ReadAt<uint64_t>(container, 8);
  if (bytes > rest.size()) return NotWhole(0, bytes, rest.size());
  rest = rest.first(bytes);
  std::vector<FatbinEntry> entries;
  while (!rest.empty()) {
    const auto at = static_cast<size_t>(rest.data() - container.data());
    HEDDLE_ASSIGN_OR_RETURN(const FatbinEntry entry, TakeEntry(at, &rest));
    entries.push_back(entry);
  }
  return entries;
}

absl::StatusOr<std::string_view> FindPtx(std::span<const FatbinEntry> entries,
                                         int32_t architecture) {
  const FatbinEntry* best = nullptr;
  for (const FatbinEntry& entry : entries) {
    if (entry.kind != FatbinEntry::kPtx || entry.architecture > architecture) continue;
    if (best == nullptr || entry.architecture > best->architecture) best = &entry;
  }
  if (best == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("a fat binary holds no PTX for sm_", architecture, " or older"));
  }
  if (best->is_compressed) {
    return absl::UnimplementedError(
        "the PTX in a fat binary is compressed: it was built without nvcc's --no-compress");
  }
  return best->payload;
}

}  // namespace heddle::ptx
