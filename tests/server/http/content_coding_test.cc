// Compressed bodies. The packed texts were made by gzip 1.12 and zstd 1.5.4, and by the libraries'
// own packers.
#include "server/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>

#include <string>

#include "absl/strings/escaping.h"
#include "base/message.h"
#include "catch2/catch.hpp"
#include "server/request/api_error.h"

namespace heddle::test {
namespace {

using server::ContentCoding;
using server::Unpack;

// printf hello | gzip -n -9 | xxd -p; printf hello | zstd -q | xxd -p
const std::string kGzipHello =
    absl::HexStringToBytes("1f8b0800000000000203cb48cdc9c9070086a6103605000000");
const std::string kZstdHello = absl::HexStringToBytes("28b52ffd045829000068656c6c6fa36d9f88");

std::string Gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 31, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

TEST_CASE("What gzip and zstd packed is unpacked", "[http]") {
  CHECK(*Unpack(ContentCoding::kGzip, kGzipHello, 5) == "hello");
  CHECK(*Unpack(ContentCoding::kZstd, kZstdHello, 5) == "hello");
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919);
  CHECK(*Unpack(ContentCoding::kGzip, Gzip(text), text.size()) == text);
  CHECK(*Unpack(ContentCoding::kZstd, Zstd(text), text.size()) == text);
  CHECK(Unpack(ContentCoding::kGzip, Gzip(""), 5)->empty());
}

TEST_CASE("A body that unpacks to too much is refused before it has", "[http]") {
  const std::string zeros(size_t{64} << 20, '0');
  for (const auto& [coding, packed] :
       {std::pair{ContentCoding::kGzip, Gzip(zeros)}, {ContentCoding::kZstd, Zstd(zeros)}}) {
    CHECK(packed.size() < (size_t{1} << 17));
    const auto unpacked = Unpack(coding, packed, size_t{1} << 20);
    CHECK(absl::IsOutOfRange(unpacked.status()));
    CHECK(server::ToApiError(unpacked.status()).http_status == 400);
    CHECK(absl::IsOutOfRange(Unpack(coding, packed, zeros.size() - 1).status()));
    CHECK(Unpack(coding, packed, zeros.size()).ok());
  }
  CHECK(absl::IsOutOfRange(Unpack(ContentCoding::kGzip, kGzipHello, 4).status()));
}

TEST_CASE("What is cut off, damaged or followed by more is refused", "[http]") {
  for (const auto& [coding, packed] :
       {std::pair{ContentCoding::kGzip, kGzipHello}, {ContentCoding::kZstd, kZstdHello}}) {
    for (size_t size = 0; size < packed.size(); ++size) {
      CHECK(absl::IsInvalidArgument(Unpack(coding, packed.substr(0, size), 100).status()));
    }
    CHECK(absl::IsInvalidArgument(Unpack(coding, packed + packed, 100).status()));
    CHECK(absl::IsInvalidArgument(Unpack(coding, packed + "x", 100).status()));
    std::string damaged = packed;
    damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);
    CHECK_FALSE(Unpack(coding, damaged, 100).ok());
  }
  CHECK(absl::IsInvalidArgument(Unpack(ContentCoding::kGzip, kZstdHello, 100).status()));
}

TEST_CASE("One coding at a time has a name", "[http]") {
  CHECK(server::ContentCodingOf("") == ContentCoding::kIdentity);
  CHECK(server::ContentCodingOf("GZip") == ContentCoding::kGzip);
  CHECK(server::ContentCodingOf("zstd") == ContentCoding::kZstd);
  CHECK_FALSE(server::ContentCodingOf("br").has_value());
  CHECK_FALSE(server::ContentCodingOf("gzip, gzip").has_value());
}

}  // namespace
}  // namespace heddle::test
