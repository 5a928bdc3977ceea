// Tables of adapters that the kernels read: for every site that adapters may change, the factors of
// every slot, at addresses that do not change. Binding an adapter to a slot writes that slot's
// entries, and the pointers to the adapter's blocks into the adapter's own pages; nothing that a
// recorded step refers to moves.
//
// Device memory: one table [slots, parts of all members of all sites] of kernels::AdapterFactors,
// zeros at first (a rank of 0 adds nothing). Thread-safety: none; owned by the executor. Source:
// Sheng et al. 2023 (S-LoRA: factors in the pages of the KV pool).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/adapter_sites.h"
#include "engine/model/model_spec.h"
#include "kernels/adapters.h"
#include "kernels/device.h"

namespace heddle::engine {

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

  // The argument of an op at a site of a layer, or of kModelLayer. nullptr: the model lacks it, or
  // no adapter that is bound changes it and it is none of the layers' plain linears.
  const kernels::AdapterMatrix* matrix(int32_t layer, AdapterSite site) const;

  // From now on rows with `slot` have the adapter. `pages` are on the device, and the
  // first image.num_pages of them hold the image; its tables are written into them.
  // INVALID_ARGUMENT: the image was made for another model; the slot is as before. REQUIRES: no
  // enqueued work reads the slot or these pages.
  absl::Status Bind(kernels::Device& device, int32_t slot, float scale, const AdapterImage& image,
                    std::span<std::byte* const> pages);

  int32_t num_slots() const { return num_slots_; }

 private:
  struct Entry {
    std::vector<kernels::AdapterPart> parts;  // of a member; `matrix` views them
    kernels::AdapterMatrix matrix;
    int32_t members = 0;  // 0: the model lacks the site
    int32_t first = 0;    // of its factors in a slot's row of the table
    int64_t inputs = 0;
    int64_t num_tokens = 0;
    AdapterSite site = AdapterSite::kQkv;
    int32_t num_bound = 0;  // slots whose adapters change it
    int32_t num_gains = 0;  // of these, those with gains
  };
  // Use of an entry by a slot's adapter.
  struct Use {
    bool changes = false;
    bool has_gains = false;
  };

  AdapterTables() = default;
  static std::vector<Entry> EntriesOf(const ModelSpec& spec);
  size_t IndexOf(int32_t layer, AdapterSite site) const;
  bool IsHere(const ImageFactors& factors) const;
  void CountUses(int32_t slot, const std::vector<Use>& uses);
  absl::Status WritePointers(kernels::Device& device, const AdapterImage& image,
                             std::span<std::byte* const> pages);

  std::vector<Entry> entries_;                     // [n_layers + 1, kNumAdapterSites]
  std::vector<std::vector<Use>> uses_;             // [num_slots_, entries]
  std::unique_ptr<kernels::Buffer> factors_;       // [num_slots_, slot_stride_]
  std::vector<kernels::AdapterFactors> slot_row_;  // [slot_stride_], reused
  std::vector<const void*> pointers_;              // of one run of tables, reused
  int32_t num_slots_ = 0;
  int32_t slot_stride_ = 0;
};

}  // namespace heddle::engine
