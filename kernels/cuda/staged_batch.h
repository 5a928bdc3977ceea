// A step's batch: the host's copy of it, and the device addresses of its arrays.
// Life: Assign, then Stage, then StageNarrow if its logit rows are to be a batch of their own;
// again with every step. Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/adapters.h"
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/logit_batch.h"
#include "kernels/owned_batch.h"

namespace heddle::kernels::cuda {

class StagedBatch {
 public:
  // Copies `batch`; fails as OwnedBatch::Assign.
  absl::Status Assign(const HostBatch& batch) { return batch_.Assign(batch); }

  // Adds its arrays to `staging`, which the caller sends. `drawn`: the step before's tokens, on the
  // device.
  void Stage(Staging& staging, const int32_t* drawn);

  // Adds those of the batch of its logit rows (Ops::NarrowToLogitRows), whose spans are the same.
  // REQUIRES: Stage, and LogitBatch::IsMadeOf(host()).
  void StageNarrow(Staging& staging);
  // Whether the last Stage was followed by StageNarrow; the views are valid then.
  bool is_narrow() const { return !narrow_groups_.empty(); }
  const HostBatch& narrow_host() const { return *narrow_host_; }
  std::span<const DeviceBatch> narrow_groups() const { return narrow_groups_; }

  const HostBatch& host() const { return batch_.view(); }
  // The views of each group of layers; the first one is also valid before Stage.
  std::span<const DeviceBatch> groups() const { return groups_; }
  const DeviceAdapters& adapters() const { return adapters_; }
  const DeviceAdapters& logit_adapters() const { return logit_adapters_; }
  const int32_t* segments() const { return segments_; }  // [n_tokens], or nullptr: all are 0
  int32_t n_tokens() const { return groups_[0].n_tokens; }

 private:
  void StageSpans(Staging& staging, const HostBatch& batch, DeviceBatch* staged);

  OwnedBatch batch_;
  std::vector<DeviceBatch> groups_ = {{}};
  LogitBatch logit_batch_;
  const HostBatch* narrow_host_ = nullptr;
  std::vector<DeviceBatch> narrow_groups_;  // empty: not staged
  static DeviceAdapters StageAdapters(Staging& staging, std::span<const int32_t> slots,
                                      AdapterGroups* groups);

  AdapterGroups adapter_groups_, logit_groups_;
  std::vector<int32_t> logit_slots_;
  DeviceAdapters adapters_, logit_adapters_;
  const int32_t* segments_ = nullptr;
  std::vector<int32_t> span_first_;  // for one group, while it is staged
};

}  // namespace heddle::kernels::cuda
