#include "engine/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/safetensors_header.h"

namespace heddle::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

// Types of the format, safetensors/src/tensor.rs.
constexpr SafetensorsType kTypes[] = {
    {"F64", 64},    {"F32", 32}, {"F16", 16},        {"BF16", 16},       {"I64", 64},
    {"I32", 32},    {"I16", 16}, {"I8", 8},          {"U64", 64},        {"U32", 32},
    {"U16", 16},    {"U8", 8},   {"BOOL", 8},        {"F8_E4M3", 8},     {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"C64", 64}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4},
};

const SafetensorsType* FindType(std::string_view name) {
  for (const SafetensorsType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

template <typename... Parts>
absl::Status Error(std::string_view file, const Parts&... parts) {
  return absl::InvalidArgumentError(base::StrCat(file, ": ", parts...));
}

absl::StatusOr<std::string_view> HeaderText(std::span<const std::byte> bytes,
                                            std::string_view file) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return Error(file, "truncated safetensors: ", bytes.size(), " bytes, expected at least 8");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > SafetensorsFile::kMaxHeaderBytes) {
    return Error(file, "not a safetensors file: it claims a header of ", length, " bytes, at most ",
                 SafetensorsFile::kMaxHeaderBytes, " are valid");
  }
  if (length > bytes.size() - sizeof(length)) {
    return Error(file, "truncated safetensors: the header claims ", length, " bytes, but only ",
                 bytes.size() - sizeof(length), " follow");
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  if (text.empty() || text.front() != '{') {
    return Error(file, "not a safetensors file: its header begins with ",
                 base::Quote(text.substr(0, 8)), ", expected \"{\"");
  }
  return text;
}

// Bytes that a tensor of this type and shape takes.
absl::StatusOr<uint64_t> TensorBytes(const SafetensorsEntry& entry, const SafetensorsType& type,
                                     std::string_view file) {
  uint64_t bits = static_cast<uint64_t>(type.bits);
  bool overflow = false;
  for (int64_t dim : entry.shape) {
    overflow = overflow || __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits);
  }
  if (overflow || bits % 8 != 0) {
    return Error(file, "tensor ", base::Quote(entry.name), " has shape [",
                 absl::StrJoin(entry.shape, ", "), "] of ", type.name,
                 overflow ? ", whose size overflows" : ", which is not a whole number of bytes");
  }
  return bits / 8;
}

// Checks one entry against the data and the entries before it, which end at `expected_begin`.
absl::StatusOr<SafetensorsTensor> PlaceTensor(SafetensorsEntry entry, uint64_t expected_begin,
                                              std::span<const std::byte> data,
                                              std::string_view file) {
  const SafetensorsType* type = FindType(entry.dtype);
  if (type == nullptr) {
    return Error(file, "tensor ", base::Quote(entry.name), " has dtype ", base::Quote(entry.dtype),
                 ", which is not a type of safetensors");
  }
  uint64_t begin = static_cast<uint64_t>(entry.offsets[0]);
  uint64_t end = static_cast<uint64_t>(entry.offsets[1]);
  if (begin > end || end > data.size()) {
    return Error(file, "tensor ", base::Quote(entry.name), " has data_offsets [", begin, ", ", end,
                 "], but the file holds ", data.size(), " bytes of tensor data");
  }
  HEDDLE_ASSIGN_OR_RETURN(uint64_t bytes, TensorBytes(entry, *type, file));
  if (end - begin != bytes) {
    return Error(file, "tensor ", base::Quote(entry.name), " has data_offsets [", begin, ", ", end,
                 "], which are ", end - begin, " bytes, but its shape [",
                 absl::StrJoin(entry.shape, ", "), "] of ", type->name, " takes ", bytes);
  }
  if (begin != expected_begin) {
    return Error(file, "tensor ", base::Quote(entry.name), " begins at byte ", begin,
                 begin < expected_begin ? " and overlaps the one before, which ends at "
                                        : " and leaves a hole after the one before, which ends at ",
                 expected_begin);
  }
  return SafetensorsTensor{std::move(entry.name), type, std::move(entry.shape),
                           data.subspan(begin, bytes)};
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  HEDDLE_ASSIGN_OR_RETURN(SafetensorsFile file, Parse(mapping.bytes(), path.string()));
  file.mapping_ = std::move(mapping);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                       std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  HEDDLE_ASSIGN_OR_RETURN(std::string_view header, HeaderText(bytes, file.name_));
  HEDDLE_ASSIGN_OR_RETURN(auto entries, ParseSafetensorsHeader(header, file.name_));
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.offsets < b.offsets; });
  std::span<const std::byte> data = bytes.subspan(sizeof(uint64_t) + header.size());
  uint64_t end = 0;
  file.tensors_.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    HEDDLE_ASSIGN_OR_RETURN(auto tensor, PlaceTensor(std::move(entry), end, data, file.name_));
    end += tensor.data.size();
    file.tensors_.push_back(std::move(tensor));
  }
  if (end != data.size()) {
    return Error(file.name_, "the tensors end at byte ", end, " of the data, but ", data.size(),
                 " bytes follow the header");
  }
  return file;
}

}  // namespace heddle::engine
