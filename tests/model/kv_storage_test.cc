// Storage of the KV cache: a page is contiguous, and layers find their blocks in it.
#include "engine/memory/kv_storage.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

constexpr int32_t kPages = 64;

TEST_CASE("The first and the last page keep what was put there, for layers of any shape",
          "[unit]") {
  KvLayout layout;
  layout.places = {{.n_kv_heads = 2, .head_dim = 64},
                   {.n_kv_heads = 1, .head_dim = 80, .keys_alone = true},
                   {.n_kv_heads = 1, .head_dim = 32}};
  layout.layers = {{.group = 0, .place = 0}, {.group = 0, .place = 1}, {.group = 0, .place = 2}};
  auto device = kernels::CreateReferenceDevice();
  auto storage = KvStorage::Create(*device, layout, kernels::DType::kF16, kPages, 16);
  REQUIRE(storage.ok());
  const auto bytes = static_cast<size_t>(storage->page_bytes());
  REQUIRE(bytes == 16 * 2 * (2 * 128 + 80 + 2 * 32));
  std::vector<std::byte> written(bytes);
  for (const int32_t page : {0, kPages - 1}) {
    for (size_t i = 0; i < bytes; ++i) written[i] = static_cast<std::byte>(i * 7 + 3);
    REQUIRE(storage->Upload(*device, PageId{page}, written.data()).ok());
    std::vector<std::byte> read(bytes);
    REQUIRE(storage->Download(*device, PageId{page}, read.data()).ok());
    CHECK(read == written);
    // The blocks follow each other in the order of the places, keys before values.
    int64_t at = 0;
    for (int32_t layer = 0; layer < 3; ++layer) {
      const kernels::KvCacheView& view = storage->layer(layer);
      CHECK((view.keys == view.values) == (layer == 1));
      std::vector<const void*> arrays = {view.keys};
      if (view.keys != view.values) arrays.push_back(view.values);
      for (const void* array : arrays) {
        const auto* block = static_cast<const std::byte*>(array) + view.PageOffset(page);
        CHECK(std::equal(block, block + view.block_bytes(), written.begin() + at));
        at += view.block_bytes();
      }
    }
    CHECK(at == static_cast<int64_t>(bytes));
  }
}

TEST_CASE("Keys of an indexer lie behind a layer's own, and are copied with them", "[unit]") {
  KvLayout layout;
  layout.places = {{.n_kv_heads = 1, .head_dim = 40, .keys_alone = true, .index_dim = 24},
                   {.n_kv_heads = 1, .head_dim = 40, .keys_alone = true}};
  layout.layers = {{.group = 0, .place = 1}, {.group = 0, .place = 0}};
  auto device = kernels::CreateReferenceDevice();
  auto storage = KvStorage::Create(*device, layout, kernels::DType::kF16, kPages, 8);
  REQUIRE(storage.ok());
  REQUIRE(storage->page_bytes() == 8 * 2 * (40 + 24 + 40));
  const kernels::KvCacheView& keys = storage->indexer(1);
  CHECK(keys.head_dim == 24);
  CHECK(keys.n_kv_heads == 1);
  CHECK(keys.keys == static_cast<std::byte*>(storage->layer(1).keys) + 8 * 2 * 40);
  CHECK(storage->layer(0).keys == static_cast<std::byte*>(keys.keys) + 8 * 2 * 24);
  std::vector<std::byte> written(static_cast<size_t>(storage->page_bytes()), std::byte{9});
  REQUIRE(storage->Upload(*device, PageId{3}, written.data()).ok());
  storage->Copy(*device, {.from = PageId{3}, .to = PageId{5}, .num_tokens = 8});
  std::vector<std::byte> copied(written.size());
  REQUIRE(storage->Download(*device, PageId{5}, copied.data()).ok());
  CHECK(copied == written);
}

TEST_CASE("A model whose layers have no attention has no storage", "[unit]") {
  KvLayout layout;
  layout.layers = {{.group = 0, .place = KvLayout::kNowhere}};
  auto device = kernels::CreateReferenceDevice();
  auto storage = KvStorage::Create(*device, layout, kernels::DType::kF16, kPages, 16);
  REQUIRE(storage.ok());
  CHECK(storage->page_bytes() == 0);
  CHECK(storage->n_layers() == 1);
}

}  // namespace
}  // namespace heddle::engine
