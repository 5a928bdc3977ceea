// What the kernels read about adapters: for every linear that adapters may change, the factors of
// every slot, at addresses that do not change. Binding an adapter to a slot writes that slot's
// entries, and the pointers to the adapter's blocks into the adapter's own pages; nothing that a
// recorded step refers to moves.
//
// Device memory: one table [slots, parts of all linears] of kernels::AdapterFactors, zeros at first
// (a rank of 0 adds nothing).
// Thread-safety: none; owned by the executor.
// Source: Sheng et al. 2023 (S-LoRA: factors in the pages of the KV pool).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/model/model_spec.h"
#include "kernels/adapters.h"
#include "kernels/device.h"

namespace heddle::engine {

// The parts of each linear of a layer, in the order of AdapterSite; empty where the layer lacks it.
// Heads of latent attention and experts have no adapters.
struct LayerAdapterParts {
  std::vector<kernels::AdapterPart> sites[kNumAdapterSites];
};
LayerAdapterParts AdapterPartsOf(const ModelSpec& spec, const LayerSpec& layer);

class AdapterTables {
 public:
  // REQUIRES: slots > 0, 0 < max_rank <= kernels::kMaxAdapterRank. RESOURCE_EXHAUSTED if the device
  // lacks the memory.
  static absl::StatusOr<std::unique_ptr<AdapterTables>> Create(kernels::Device& device,
                                                               const ModelSpec& spec, int32_t slots,
                                                               int32_t max_rank,
                                                               kernels::DType dtype);
  // Bytes that Create takes.
  static int64_t Bytes(const ModelSpec& spec, int32_t slots);

  // The argument of a linear; nullptr if the layer has no such linear.
  const kernels::AdapterMatrix* matrix(int32_t layer, AdapterSite site) const;

  // From now on rows with `slot` have the adapter. `pages` [image.num_pages] are on the device and
  // hold the image; its tables are written into them. REQUIRES: the image was made for this model
  // with these limits, and no enqueued work reads the slot or these pages.
  absl::Status Bind(kernels::Device& device, int32_t slot, float scale, const AdapterImage& image,
                    std::span<std::byte* const> pages);

  int32_t num_slots() const { return num_slots_; }

 private:
  // A linear's entry in `matrices_`.
  struct Entry {
    kernels::AdapterMatrix matrix;
    int32_t first = 0;  // of its parts in a slot's row of the table
  };

  AdapterTables() = default;
  absl::Status WritePointers(kernels::Device& device, const AdapterImage& image,
                             std::span<std::byte* const> pages);

  std::vector<LayerAdapterParts> parts_;           // [n_layers]; the matrices view them
  std::vector<Entry> entries_;                     // [n_layers, kNumAdapterSites]
  std::unique_ptr<kernels::Buffer> factors_;       // [num_slots_, slot_stride_]
  std::vector<kernels::AdapterFactors> slot_row_;  // [slot_stride_], reused
  std::vector<const void*> pointers_;              // of one run of tables, reused
  int32_t num_slots_ = 0;
  int32_t slot_stride_ = 0;
};

}  // namespace heddle::engine
