#include "engine/memory/kv_storage.h"

#include <numeric>
#include <utility>

#include "base/status.h"

namespace heddle::engine {
namespace {

// The offset of array i of n in its buffer. Host memory becomes resident 2 MiB at a time: if all
// arrays reached their next 2 MiB at the same page, the step that writes that page would wait for
// all of them (150 ms on a virtual machine, every 4,096 tokens of a model of 1.1 billion weights).
// The offsets are staggered, so that one array after the other gets there. Small arrays are not
// worth the unused bytes, nor are arrays in a device's own memory.
int64_t OffsetOfArray(int64_t i, int64_t n, int64_t bytes) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  constexpr int64_t kSmallPage = 4096;
  return bytes < 8 * kHugePage ? 0 : kHugePage * i / n / kSmallPage * kSmallPage;
}

}  // namespace

absl::StatusOr<KvStorage> KvStorage::Create(kernels::Device& device, const KvLayout& layout,
                                            kernels::DType dtype, int32_t num_pages,
                                            int32_t page_tokens) {
  KvStorage storage;
  int64_t n_arrays = 0;
  for (const KvLayerShape& shape : layout.places) n_arrays += shape.n_arrays();
  for (const KvLayerShape& shape : layout.places) {
    kernels::KvCacheView view{.dtype = dtype,
                              .num_pages = num_pages,
                              .page_tokens = page_tokens,
                              .n_kv_heads = shape.n_kv_heads,
                              .head_dim = shape.head_dim};
    const int64_t bytes = num_pages * view.page_bytes();
    void** const arrays[] = {&view.keys, &view.values};
    for (void** array : std::span(arrays, static_cast<size_t>(shape.n_arrays()))) {
      const auto i = static_cast<int64_t>(storage.buffers_.size());
      const int64_t offset = device.memory() ? 0 : OffsetOfArray(i, n_arrays, bytes);
      HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer,
                              device.Allocate(offset + bytes));
      storage.arrays_.push_back(static_cast<std::byte*>(buffer->data()) + offset);
      *array = storage.arrays_.back();
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

absl::Status KvStorage::Download(kernels::Device& device, PageId page, std::byte* to,
                                 bool beside) const {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const std::byte* from = arrays_[i] + Index(page) * page_bytes_[i];
    HEDDLE_RETURN_IF_ERROR(beside ? device.DownloadBeside(to, from, page_bytes_[i])
                                  : device.Download(to, from, page_bytes_[i]));
    to += page_bytes_[i];
  }
  return absl::OkStatus();
}

absl::Status KvStorage::Upload(kernels::Device& device, PageId page, const std::byte* from,
                               bool beside) const {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    std::byte* to = arrays_[i] + Index(page) * page_bytes_[i];
    HEDDLE_RETURN_IF_ERROR(beside ? device.UploadBeside(to, from, page_bytes_[i])
                                  : device.Upload(to, from, page_bytes_[i]));
    from += page_bytes_[i];
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
