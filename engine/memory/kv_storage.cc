#include "engine/memory/kv_storage.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status.h"

namespace heddle::engine {

absl::StatusOr<KvStorage> KvStorage::Create(kernels::Device& device, const KvLayout& layout,
                                            kernels::DType dtype, int32_t num_pages,
                                            int32_t page_tokens, int64_t least_page_bytes) {
  KvStorage storage;
  storage.page_tokens_ = page_tokens;
  storage.page_bytes_ = std::max(least_page_bytes, layout.PageBytes(dtype, page_tokens));
  if (storage.page_bytes_ > 0) {
    HEDDLE_ASSIGN_OR_RETURN(storage.buffer_, device.Allocate(num_pages * storage.page_bytes_));
    storage.base_ = static_cast<std::byte*>(storage.buffer_->data());
  }
  // A page has keys or state, which both begin where it begins.
  std::byte* key_block = storage.base_;
  std::byte* state_block = storage.base_;
  std::vector<kernels::KvCacheView> indexers;  // [places], or empty
  for (const KvLayerShape& shape : layout.places) {
    std::byte*& block = shape.is_state ? state_block : key_block;
    kernels::KvCacheView view{.dtype = shape.is_state ? kernels::DType::kF32 : dtype,
                              .num_pages = num_pages,
                              .page_tokens = shape.is_snapshot ? 1 : page_tokens,
                              .n_kv_heads = shape.n_kv_heads,
                              .head_dim = shape.head_dim,
                              .page_stride = storage.page_bytes_};
    void** const arrays[] = {&view.keys, &view.values};
    for (void** array : std::span(arrays, static_cast<size_t>(shape.n_arrays()))) {
      *array = block;
      block += view.block_bytes();
    }
    if (shape.keys_alone) view.values = view.keys;
    storage.places_.push_back(view);
    if (shape.index_dim == 0) continue;
    view.n_kv_heads = 1;
    view.head_dim = shape.index_dim;
    view.keys = view.values = block;
    block += view.block_bytes();
    indexers.resize(layout.places.size());
    indexers[storage.places_.size() - 1] = view;
  }
  for (const KvLayout::Place& layer : layout.layers) {
    kernels::KvCacheView view;
    kernels::KvCacheView indexer;
    if (layer.place != KvLayout::kNowhere) {
      view = storage.places_[layer.place];
      if (!indexers.empty()) indexer = indexers[static_cast<size_t>(layer.place)];
    }
    view.group = indexer.group = layer.group;
    storage.views_.push_back(view);
    if (!indexers.empty()) storage.index_views_.push_back(indexer);
  }
  for (const kernels::KvCacheView& indexer : indexers) {
    if (indexer.head_dim > 0) storage.places_.push_back(indexer);
  }
  return storage;
}

void KvStorage::Copy(kernels::Device& device, const PageCopy& copy) const {
  for (const kernels::KvCacheView& place : places_) {
    device.CopyPage(place, Index(copy.from), Index(copy.to),
                    std::min(copy.num_tokens, place.page_tokens));
  }
}

absl::Status KvStorage::Download(kernels::Device& device, PageId page, std::byte* to,
                                 bool beside) const {
  if (page_bytes_ == 0) return absl::OkStatus();
  const std::byte* from = this->page(page);
  return beside ? device.DownloadBeside(to, from, page_bytes_)
                : device.Download(to, from, page_bytes_);
}

absl::Status KvStorage::Upload(kernels::Device& device, PageId page, const std::byte* from,
                               bool beside) const {
  if (page_bytes_ == 0) return absl::OkStatus();
  std::byte* to = this->page(page);
  return beside ? device.UploadBeside(to, from, page_bytes_) : device.Upload(to, from, page_bytes_);
}

}  // namespace heddle::engine
