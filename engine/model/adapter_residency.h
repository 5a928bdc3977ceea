// The adapters that are in the pool: carries out a plan's loads and binds, and knows which pages
// the rows of a slot read.
//
// Thread-safety: none; owned by the executor.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/adapter_tables.h"
#include "engine/model/model_spec.h"
#include "engine/model/pages_in_use.h"
#include "engine/step.h"
#include "kernels/device.h"

namespace heddle::engine {

class AdapterResidency {
 public:
  // REQUIRES: limits.adapter_slots > 0.
  static absl::StatusOr<std::unique_ptr<AdapterResidency>> Create(kernels::Device& device,
                                                                  const ModelSpec& spec,
                                                                  const ExecutorLimits& limits);

  // Adds to `pages` those that the rows of `plan` read because of their adapters.
  void AddPagesOf(const StepPlan& plan, PagesInUse* pages) const;

  // Whether the plan's loads and binds touch nothing that a step in flight uses; `in_use` are all
  // pages of that step.
  bool MayApplyBeside(const StepPlan& plan, const StepPlan& in_flight,
                      const PagesInUse& in_use) const;

  // Loads and binds what the plan says, of this rank's images in `adapters`. Aborts if these lack
  // one that is named, or an image does not fit the pool: the front end has checked both.
  absl::Status Apply(kernels::Device& device, const KvStorage& storage, const StepPlan& plan,
                     std::span<const std::shared_ptr<const AdapterImage>> adapters);

  const AdapterTables& tables() const { return *tables_; }

 private:
  explicit AdapterResidency(int32_t rank) : rank_(rank) {}

  const int32_t rank_;  // of those that share the model
  std::unique_ptr<AdapterTables> tables_;
  std::vector<std::vector<PageId>> pages_of_slot_;  // [num_slots]
  std::vector<std::byte*> addresses_;               // of one adapter's pages, reused
};

}  // namespace heddle::engine
