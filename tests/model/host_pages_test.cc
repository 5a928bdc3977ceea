// The host's tier of the KV cache as memory and as a file.
#include "engine/memory/host_pages.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

TEST_CASE("Slots keep what was written to them, in memory and in a file without a name", "[unit]") {
  test::TempDir dir;
  for (const std::string& directory : {std::string(), dir.path().string()}) {
    INFO("directory " << directory);
    auto pages = HostPages::Create(/*num_slots=*/5, /*page_bytes=*/1000, directory);
    REQUIRE(pages.ok());
    for (int32_t slot = 0; slot < 5; ++slot) {
      std::fill_n((*pages)->Slot(slot), 1000, static_cast<std::byte>(slot + 1));
    }
    for (int32_t slot = 0; slot < 5; ++slot) {
      const std::byte* begin = (*pages)->Slot(slot);
      CHECK(std::count(begin, begin + 1000, static_cast<std::byte>(slot + 1)) == 1000);
    }
    CHECK(std::filesystem::is_empty(dir.path()));
  }
}

TEST_CASE("A folder that is not there, and room that nobody has, are refused by name", "[unit]") {
  auto nowhere = HostPages::Create(1, 1000, "/no/such/folder");
  REQUIRE(absl::IsFailedPrecondition(nowhere.status()));
  CHECK(std::string(nowhere.status().message()).find("/no/such/folder") != std::string::npos);
  constexpr int64_t kPetabyte = int64_t{1} << 50;
  auto memory = HostPages::Create(1, kPetabyte, "");
  REQUIRE(absl::IsResourceExhausted(memory.status()));
  CHECK(std::string(memory.status().message()).find("--host-kv-memory") != std::string::npos);
}

}  // namespace
}  // namespace heddle::engine
