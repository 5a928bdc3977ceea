// Storage of the pool's pages. A page is contiguous: for each of its places a block of keys and one
// of values, or one of state, one behind the other. So a swapped page is one copy, and a page can
// hold anything else as well, such as an adapter's factors. Layers of different groups share the
// blocks of a place (kv_layout.h).
//
// Unit: one page = page_tokens positions of the layers of one group, K and V. Page ids index the
// storage; the scheduler hands them out. All memory is taken at creation (the CPU backend's pages
// become resident when first written).
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv_spans.h"
#include "engine/memory/kv_layout.h"
#include "kernels/device.h"

namespace heddle::engine {

class KvStorage {
 public:
  // Pages have `least_page_bytes` or what the layout takes, whichever is more.
  // RESOURCE_EXHAUSTED if the device does not have the memory.
  static absl::StatusOr<KvStorage> Create(kernels::Device& device, const KvLayout& layout,
                                          kernels::DType dtype, int32_t num_pages,
                                          int32_t page_tokens, int64_t least_page_bytes = 0);

  const kernels::KvCacheView& layer(int32_t index) const { return views_[index]; }
  // The keys of a layer's indexer. REQUIRES: its shape has an index_dim.
  const kernels::KvCacheView& indexer(int32_t index) const { return index_views_[index]; }
  int32_t n_layers() const { return static_cast<int32_t>(views_.size()); }

  // Copies positions between pages in every place. Pages are valid ids and differ.
  void Copy(kernels::Device& device, const PageCopy& copy) const;

  int32_t page_tokens() const { return page_tokens_; }
  // Bytes of a page: of all its places, keys and values, or more.
  int64_t page_bytes() const { return page_bytes_; }
  // The page's first byte, on the device.
  std::byte* page(PageId page) const { return base_ + Index(page) * page_bytes_; }

  // Copies a whole page to or from host memory [page_bytes()]; blocks until done. `beside`: work
  // that the device still has to do, which must not use the page (Device::UploadBeside).
  absl::Status Download(kernels::Device& device, PageId page, std::byte* to,
                        bool beside = false) const;
  absl::Status Upload(kernels::Device& device, PageId page, const std::byte* from,
                      bool beside = false) const;

 private:
  std::unique_ptr<kernels::Buffer> buffer_;  // null: pages are empty
  std::byte* base_ = nullptr;
  int64_t page_bytes_ = 0;
  int32_t page_tokens_ = 0;
  std::vector<kernels::KvCacheView> places_;       // places of a page
  std::vector<kernels::KvCacheView> views_;        // [n_layers]
  std::vector<kernels::KvCacheView> index_views_;  // the same for indexers; empty: there is none
};

}  // namespace heddle::engine
