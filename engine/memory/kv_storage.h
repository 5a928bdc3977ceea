// Storage of the paged KV cache: for each layer one array of keys and one of values, all pages.
//
// Unit: one page = page_tokens positions, all layers, K and V. Page ids index these arrays; the
// scheduler hands them out. All memory is taken at creation (the CPU backend's pages become
// resident when first written).
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/step.h"
#include "kernels/device.h"

namespace heddle::engine {

// Shape of one layer's cache.
struct KvLayerShape {
  int32_t n_kv_heads = 0;  // 0: the layer has no attention
  int32_t head_dim = 0;
  bool keys_alone = false;  // which are the values too: see kernels::KvCacheView

  int32_t n_arrays() const { return n_kv_heads == 0 ? 0 : keys_alone ? 1 : 2; }
};

// Bytes of one position over all layers, K and V, scales included.
int64_t KvBytesPerToken(std::span<const KvLayerShape> layers, kernels::DType dtype);

class KvStorage {
 public:
  // RESOURCE_EXHAUSTED if the device does not have the memory.
  static absl::StatusOr<KvStorage> Create(kernels::Device& device,
                                          std::span<const KvLayerShape> layers,
                                          kernels::DType dtype, int32_t num_pages,
                                          int32_t page_tokens);

  const kernels::KvCacheView& layer(int32_t index) const { return views_[index]; }
  int32_t n_layers() const { return static_cast<int32_t>(views_.size()); }

  // Copies positions between pages in every layer. Pages are valid ids and differ.
  void Copy(kernels::Device& device, const PageCopy& copy) const;

  // A page over all layers, keys and values, as Download writes it.
  int64_t page_bytes() const;

  // Copies a whole page to and from host memory [page_bytes()]; blocks until done.
  absl::Status Download(kernels::Device& device, PageId page, std::byte* to) const;
  absl::Status Upload(kernels::Device& device, PageId page, const std::byte* from) const;

 private:
  // Whole pages one after the other in each of them.
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
  std::vector<int64_t> page_bytes_;  // in each buffer
  std::vector<kernels::KvCacheView> views_;
};

}  // namespace heddle::engine
