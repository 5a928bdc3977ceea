// Storage of the KV cache: arrays large enough to be staggered lie apart and keep their pages.
#include "engine/memory/kv_storage.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

constexpr int32_t kPages = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;

TEST_CASE("Large arrays come to their next huge page at different pages of the cache", "[unit]") {
  KvLayout layout;
  layout.places = {{.n_kv_heads = 2, .head_dim = 64}, {.n_kv_heads = 2, .head_dim = 64}};
  layout.layers = {{.group = 0, .place = 0}, {.group = 0, .place = 1}};
  auto device = kernels::CreateReferenceDevice();
  auto storage = KvStorage::Create(*device, layout, kernels::DType::kF16, kPages, 16);
  REQUIRE(storage.ok());
  std::vector<int64_t> starts;
  std::vector<const char*> arrays;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const void* array : {storage->layer(layer).keys, storage->layer(layer).values}) {
      arrays.push_back(static_cast<const char*>(array));
      starts.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(array)) % kHugePage);
    }
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i) CHECK(starts[i] - starts[i - 1] >= kHugePage / 8);
  std::sort(arrays.begin(), arrays.end());
  const int64_t array_bytes = kPages * storage->page_bytes() / 4;
  for (size_t i = 1; i < arrays.size(); ++i) CHECK(arrays[i] - arrays[i - 1] >= array_bytes);
}

TEST_CASE("The first and the last page of large arrays keep what was put there", "[unit]") {
  KvLayout layout;
  layout.places = {{.n_kv_heads = 2, .head_dim = 64}};
  layout.layers = {{.group = 0, .place = 0}};
  auto device = kernels::CreateReferenceDevice();
  auto storage = KvStorage::Create(*device, layout, kernels::DType::kF16, kPages, 16);
  REQUIRE(storage.ok());
  const auto bytes = static_cast<size_t>(storage->page_bytes());
  std::vector<std::byte> written(bytes);
  for (const int32_t page : {0, kPages - 1}) {
    for (size_t i = 0; i < bytes; ++i) written[i] = static_cast<std::byte>(i * 7 + 3);
    REQUIRE(storage->Upload(*device, PageId{page}, written.data()).ok());
    std::vector<std::byte> read(bytes);
    REQUIRE(storage->Download(*device, PageId{page}, read.data()).ok());
    CHECK(read == written);
    // Where the layer looks for its keys and values: the first half of the page's bytes and the
    // second.
    const auto& view = storage->layer(0);
    const auto half = static_cast<int64_t>(bytes) / 2;
    const auto* keys = static_cast<const std::byte*>(view.keys) + page * half;
    const auto* values = static_cast<const std::byte*>(view.values) + page * half;
    CHECK(std::equal(keys, keys + half, written.begin()));
    CHECK(std::equal(values, values + half, written.begin() + half));
  }
}

}  // namespace
}  // namespace heddle::engine
