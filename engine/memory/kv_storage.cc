#include "engine/memory/kv_storage.h"

#include <numeric>
#include <utility>

#include "base/status.h"

namespace heddle::engine {

absl::StatusOr<KvStorage> KvStorage::Create(kernels::Device& device, const KvLayout& layout,
                                            kernels::DType dtype, int32_t num_pages,
                                            int32_t page_tokens) {
  KvStorage storage;
  for (const KvLayerShape& shape : layout.places) {
    kernels::KvCacheView view{.dtype = dtype,
                              .num_pages = num_pages,
                              .page_tokens = page_tokens,
                              .n_kv_heads = shape.n_kv_heads,
                              .head_dim = shape.head_dim};
    const int64_t bytes = num_pages * view.page_bytes();
    void** const arrays[] = {&view.keys, &view.values};
    for (void** array : std::span(arrays, static_cast<size_t>(shape.n_arrays()))) {
      HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, device.Allocate(bytes));
      *array = buffer->data();
      storage.buffers_.push_back(std::move(buffer));
      storage.page_bytes_.push_back(bytes / num_pages);
    }
    if (shape.keys_alone) view.values = view.keys;
    storage.places_.push_back(view);
  }
  for (const KvLayout::Place& layer : layout.layers) {
    kernels::KvCacheView view;
    if (layer.place != KvLayout::kNowhere) view = storage.places_[layer.place];
    view.group = layer.group;
    storage.views_.push_back(view);
  }
  return storage;
}

void KvStorage::Copy(kernels::Device& device, const PageCopy& copy) const {
  for (const kernels::KvCacheView& place : places_) {
    device.CopyPage(place, Index(copy.from), Index(copy.to), copy.num_tokens);
  }
}

int64_t KvStorage::page_bytes() const {
  return std::accumulate(page_bytes_.begin(), page_bytes_.end(), int64_t{0});
}

absl::Status KvStorage::Download(kernels::Device& device, PageId page, std::byte* to) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const std::byte* from = static_cast<std::byte*>(buffers_[i]->data());
    HEDDLE_RETURN_IF_ERROR(
        device.Download(to, from + Index(page) * page_bytes_[i], page_bytes_[i]));
    to += page_bytes_[i];
  }
  return absl::OkStatus();
}

absl::Status KvStorage::Upload(kernels::Device& device, PageId page, const std::byte* from) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    std::byte* to = static_cast<std::byte*>(buffers_[i]->data());
    HEDDLE_RETURN_IF_ERROR(device.Upload(to + Index(page) * page_bytes_[i], from, page_bytes_[i]));
    from += page_bytes_[i];
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
