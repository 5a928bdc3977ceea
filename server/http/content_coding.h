// Bodies that a client has compressed (Content-Encoding): gzip (RFC 1952) and zstd (RFC 8878).
// Functions only: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace heddle::server {

enum class ContentCoding : uint8_t { kIdentity, kGzip, kZstd };

// The coding of a header's value; empty: it is not supported, or there are several.
std::optional<ContentCoding> ContentCodingOf(std::string_view value);

// The unpacked body. INVALID_ARGUMENT: it is not whole, not of that coding, or something follows
// it. OUT_OF_RANGE: it has more than `max_bytes`, which are never allocated at once for less; or
// its window has more than the 8 MiB that RFC 8878 asks decoders to support.
absl::StatusOr<std::string> Unpack(ContentCoding coding, std::string_view packed, size_t max_bytes);

}  // namespace heddle::server
