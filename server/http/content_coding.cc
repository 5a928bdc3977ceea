#include "server/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/message.h"
#include "server/http/http_message.h"

namespace heddle::server {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr int kMaxWindowLog = 23;  // 8 MiB

absl::Status Broken(std::string_view coding) {
  return absl::InvalidArgumentError(
      base::StrCat("the body is not one whole message of the content coding ", coding));
}

absl::Status TooLong(size_t max_bytes) {
  return absl::OutOfRangeError(
      base::StrCat("the body unpacks to more than the ", max_bytes, " bytes that are allowed"));
}

// Makes room behind the text for the next piece, of one byte more than is allowed at most, so that
// a text of exactly that length is not taken for a longer one.
size_t Grow(size_t size, size_t max_bytes, std::string* text) {
  const size_t more = std::min(std::max(kPieceBytes, size), max_bytes - size + 1);
  text->resize(size + more);
  return more;
}

absl::StatusOr<std::string> Gunzip(std::string_view packed, size_t max_bytes) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return absl::InternalError("zlib has no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  // The library does not write to its input.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  size_t size = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    const size_t room = Grow(size, max_bytes, &text);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + size);
    stream.avail_out = static_cast<uInt>(room);
    result = inflate(&stream, Z_NO_FLUSH);
    size += room - stream.avail_out;
    if (size > max_bytes) return TooLong(max_bytes);
    if (result == Z_OK && stream.avail_in == 0 && stream.avail_out > 0) return Broken("gzip");
  }
  if (result != Z_STREAM_END || stream.avail_in > 0) return Broken("gzip");
  text.resize(size);
  return text;
}

absl::StatusOr<std::string> Unzstd(std::string_view packed, size_t max_bytes) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  if (context == nullptr) return absl::InternalError("zstd has no memory");
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  ZSTD_inBuffer input{packed.data(), packed.size(), 0};
  std::string text;
  size_t size = 0;
  size_t left = 1;  // of the frame; 0: it is whole
  while (left != 0) {
    const size_t room = Grow(size, max_bytes, &text);
    ZSTD_outBuffer output{text.data() + size, room, 0};
    left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left) != 0) {
      const bool window = ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge;
      return window ? absl::OutOfRangeError("the body's zstd window has more than 8 MiB")
                    : Broken("zstd");
    }
    size += output.pos;
    if (size > max_bytes) return TooLong(max_bytes);
    if (left != 0 && input.pos == input.size && output.pos < output.size) return Broken("zstd");
  }
  if (input.pos != input.size) return Broken("zstd");
  text.resize(size);
  return text;
}

}  // namespace

std::optional<ContentCoding> ContentCodingOf(std::string_view value) {
  if (value.empty() || EqualsIgnoringCase(value, "identity")) return ContentCoding::kIdentity;
  if (EqualsIgnoringCase(value, "gzip") || EqualsIgnoringCase(value, "x-gzip")) {
    return ContentCoding::kGzip;
  }
  if (EqualsIgnoringCase(value, "zstd")) return ContentCoding::kZstd;
  return std::nullopt;
}

absl::StatusOr<std::string> Unpack(ContentCoding coding, std::string_view packed,
                                   size_t max_bytes) {
  constexpr size_t kMost = std::numeric_limits<uInt>::max() / 2;  // zlib counts in 32 bits
  max_bytes = std::min(max_bytes, kMost);
  if (packed.size() > kMost) return TooLong(max_bytes);
  switch (coding) {
    case ContentCoding::kGzip:
      return Gunzip(packed, max_bytes);
    case ContentCoding::kZstd:
      return Unzstd(packed, max_bytes);
    case ContentCoding::kIdentity:
      break;
  }
  return std::string(packed);
}

}  // namespace heddle::server
