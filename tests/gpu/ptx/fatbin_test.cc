// The bytes of headers are those that nvcc 13.0 wrote for a small source, for sm_90a.
#include "tests/gpu/ptx/fatbin.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

namespace heddle::ptx {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr char kText[] = "\n\n.version 9.0\n.target sm_90a\n";  // 30 characters

// Entry headers as nvcc wrote them; sizes of payloads are set by the builder below.
const Bytes kElfHeader = {2, 0, 1, 1, 0x40, 0, 0, 0, 0,    0, 0,    0, 0,    0, 0, 0,
                          0, 0, 0, 0, 0,    0, 0, 0, 8,    0, 1,    0, 0x5A, 0, 0, 0,
                          0, 0, 0, 0, 0,    0, 0, 0, 0x11, 0, 0x10, 0, 0,    0, 0, 0,
                          0, 0, 0, 0, 0,    0, 0, 0, 0,    0, 0,    0, 0,    0, 0, 0};
const Bytes kPtxHeader = {1,    0, 1,    1, 0x50, 0, 0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                          0x40, 0, 0,    0, 0,    0, 9, 0, 0x5A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                          0x11, 0, 0x10, 0, 0,    0, 0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                          0,    0, 0,    0, 0x48, 0, 0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

constexpr size_t kPayloadSizeAt = 8;
constexpr size_t kArchitectureAt = 28;
constexpr size_t kFlagsAt = 40;

// A container of entries with 32 bytes each, the text and two zeros in those of PTX.
Bytes Container(std::initializer_list<Bytes> headers) {
  Bytes made = {0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (const Bytes& header : headers) {
    const size_t at = made.size();
    made.insert(made.end(), header.begin(), header.end());
    made[at + kPayloadSizeAt] = 32;
    Bytes payload(32);
    std::memcpy(payload.data(), kText, sizeof(kText) - 1);
    made.insert(made.end(), payload.begin(), payload.end());
  }
  const size_t bytes = made.size() - 16;
  made[8] = static_cast<uint8_t>(bytes);
  made[9] = static_cast<uint8_t>(bytes >> 8);
  return made;
}

Bytes With(Bytes bytes, size_t at, uint8_t value) {
  bytes[at] = value;
  return bytes;
}

std::string ErrorOf(const Bytes& container) {
  const auto entries = ReadFatbin(container);
  return entries.ok() ? "" : std::string(entries.status().message());
}

TEST_CASE("PTX beside machine code is found without the zeros behind it", "[ptx][unit]") {
  const Bytes container = Container({kElfHeader, kPtxHeader});
  const auto entries = ReadFatbin(container);
  REQUIRE(entries.ok());
  REQUIRE(entries->size() == 2);
  CHECK((*entries)[0].kind == FatbinEntry::kElf);
  CHECK((*entries)[0].payload.size() == 32);
  CHECK((*entries)[1].kind == FatbinEntry::kPtx);
  CHECK((*entries)[1].architecture == 90);
  const auto text = FindPtx(*entries, 90);
  REQUIRE(text.ok());
  CHECK(*text == kText);
}

TEST_CASE("Of several architectures the newest that the machine runs is taken", "[ptx][unit]") {
  const Bytes older = With(kPtxHeader, kArchitectureAt, 80);
  const Bytes newer = With(kPtxHeader, kArchitectureAt, 100);
  const Bytes container = Container({older, kPtxHeader, newer});
  const auto entries = ReadFatbin(container);
  REQUIRE(entries.ok());
  const auto text = FindPtx(*entries, 90);
  REQUIRE(text.ok());
  CHECK(text->data() == (*entries)[1].payload.data());
}

TEST_CASE("Machine code alone, and PTX of later devices, is no PTX", "[ptx][unit]") {
  const Bytes container = Container({kElfHeader, With(kPtxHeader, kArchitectureAt, 100)});
  const auto entries = ReadFatbin(container);
  REQUIRE(entries.ok());
  CHECK(absl::IsNotFound(FindPtx(*entries, 90).status()));
}

TEST_CASE("Compressed PTX is refused, whichever way it is compressed", "[ptx][unit]") {
  const uint8_t flags = GENERATE(0x20, 0x80);  // second byte, of LZ4 and Zstd
  const Bytes container = Container({With(kPtxHeader, kFlagsAt + 1, flags)});
  const auto entries = ReadFatbin(container);
  REQUIRE(entries.ok());
  const auto text = FindPtx(*entries, 90);
  CHECK(absl::IsUnimplemented(text.status()));
  CHECK_THAT(std::string(text.status().message()), Catch::Contains("--no-compress"));
}

TEST_CASE("Each cut of a container is an error", "[ptx][unit]") {
  const Bytes whole = Container({kElfHeader, kPtxHeader});
  CHECK(ErrorOf(whole).empty());
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(ErrorOf(Bytes(whole.begin(), whole.begin() + static_cast<int64_t>(size))).empty());
  }
}

TEST_CASE("Sizes that lead out of the container are errors", "[ptx][unit]") {
  const Bytes whole = Container({kPtxHeader});
  const size_t entry = 16;
  CHECK_THAT(ErrorOf(With(whole, entry + kPayloadSizeAt, 33)), Catch::Contains("33 bytes"));
  CHECK_THAT(ErrorOf(With(whole, entry + kPayloadSizeAt, 31)), Catch::Contains("1 are left"));
  // With its highest byte the sum of both sizes would wrap around.
  Bytes huge = whole;
  std::memset(huge.data() + entry + kPayloadSizeAt, 0xFF, 8);
  CHECK_THAT(ErrorOf(huge), Catch::Contains("18446744073709551615 bytes"));
  // Headers: one shorter than its fields, one longer than the container.
  CHECK_THAT(ErrorOf(With(whole, entry + 4, 0x3F)), Catch::Contains("63 bytes"));
  CHECK_THAT(ErrorOf(With(whole, entry + 7, 0x80)), Catch::Contains("2147483728 bytes"));
}

TEST_CASE("Other magic numbers and versions are errors", "[ptx][unit]") {
  const Bytes whole = Container({kPtxHeader});
  CHECK_THAT(ErrorOf(With(whole, 0, 0x51)), Catch::Contains("ba55ed51"));
  CHECK_THAT(ErrorOf(With(whole, 4, 2)), Catch::Contains("version 2"));
  CHECK_THAT(ErrorOf(With(whole, 6, 24)), Catch::Contains("24 bytes"));
}

struct Wrapper {
  uint32_t magic = 0x466243B1;
  uint32_t version = 1;
  const uint8_t* data = nullptr;
  const void* prelinked = nullptr;
};

TEST_CASE("What objects register leads to the whole container", "[ptx][unit]") {
  const Bytes whole = Container({kElfHeader, kPtxHeader});
  const Wrapper wrapper = {.data = whole.data()};
  const auto container = ContainerOf(&wrapper);
  REQUIRE(container.ok());
  CHECK(container->data() == whole.data());
  CHECK(container->size() == whole.size());
}

TEST_CASE("Registered code of another kind is an error", "[ptx][unit]") {
  const Bytes whole = Container({kPtxHeader});
  const Wrapper unknown = {.magic = 0x466243B2, .data = whole.data()};
  CHECK(absl::IsInvalidArgument(ContainerOf(&unknown).status()));
  const Wrapper relocatable = {.version = 2, .data = whole.data()};
  CHECK(absl::IsInvalidArgument(ContainerOf(&relocatable).status()));
  const Bytes broken = With(whole, 0, 0);
  const Wrapper leads_astray = {.data = broken.data()};
  CHECK(absl::IsInvalidArgument(ContainerOf(&leads_astray).status()));
}

}  // namespace
}  // namespace heddle::ptx
