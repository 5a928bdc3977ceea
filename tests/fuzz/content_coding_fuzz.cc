// Any bytes as a compressed body: refused, or unpacked to no more than is allowed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/http/content_coding.h"

namespace heddle::test {
namespace {

using server::ContentCoding;

void Check(std::string_view packed) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  for (ContentCoding coding : {ContentCoding::kGzip, ContentCoding::kZstd}) {
    const absl::StatusOr<std::string> text = server::Unpack(coding, packed, kMaxBytes);
    if (text.ok()) {
      HEDDLE_CHECK(text->size() <= kMaxBytes, "what is unpacked has a bound");
      continue;
    }
    HEDDLE_CHECK(absl::IsInvalidArgument(text.status()) || absl::IsOutOfRange(text.status()),
                 "what a client sends is never the server's fault");
  }
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  heddle::test::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
