// The state that the ops of one step on the CUDA backend share: the batch, the stream, the memory,
// and the first failure.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/linear/linear_ways.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cuda {

class PeerGroup;  // kernels/cuda/ranks/peer_group.h

// Device memory that ops use one after the other, in stream order: each only between its own
// launches.
struct Workspace {
  uint8_t* data = nullptr;
  int64_t bytes = 0;
};

// One for every 128 rows of a weight, enough for half a million rows.
inline constexpr int64_t kReductionCounters = 4096;
static_assert(kMaxMergeCounters <= kReductionCounters);

// The plan of a step's attention, and the device addresses of its parts.
struct PlannedAttention {
  AttentionGrouping grouping;
  int32_t n_decode = 0, n_prefill = 0, n_merges = 0;
  const AttentionTile* decode = nullptr;
  const AttentionTile* prefill = nullptr;
  const AttentionMerge* merges = nullptr;
  const AttentionMerge* tile_merges = nullptr;
  const int32_t* shared_rows = nullptr;
  const uint64_t* chunk_masks = nullptr;  // nullptr: HostBatch::tree_mask serves
  // As in AttentionPlan. wide_of_span is the address for span 0: earlier spans than the first have
  // no entry.
  int32_t prefill_rows = 0, decode_rows = 0;
  int32_t n_wide_pages = 0;
  const int32_t* wide_pages = nullptr;
  const int32_t* wide_of_span = nullptr;
  bool codes_queries = false;
  int32_t n_expanded_rows = 0;
  const int32_t* expanded_rows = nullptr;
  int32_t n_turned_rows = 0;
  const TurnedRow* turned_rows = nullptr;
  std::vector<AttentionRound> later_rounds;
};

// Adds the plan's arrays to what is copied to the device next.
PlannedAttention StagePlan(const AttentionPlan& plan, const AttentionGrouping& grouping,
                           Staging* staging);

// The logit rows of a step as its batch (Ops::NarrowToLogitRows).
struct NarrowBatch {
  const HostBatch* host = nullptr;
  std::span<const DeviceBatch> groups;
};

struct DeviceStep {
  Runtime& runtime;
  DType activations;
  Stream stream;
  // All sequences, as each group of layers sees them; attention's tiles name the group.
  std::span<const DeviceBatch> groups;
  int32_t first_row = 0;  // row of the batch that is the tensors' row 0
  int32_t n_rows = 0;
  const HostBatch* host = nullptr;    // all sequences; what is planned with them asks for lengths
  const int32_t* segments = nullptr;  // [rows of the batch], or nullptr: all are 0
  Workspace workspace;
  Workspace drawn;                // the step's tokens, in the order of its draws
  Workspace results;              // other results of sampling, kept until the end of the step
  Workspace row_sums;             // sums of rows, as long
  int32_t* counters = nullptr;    // [kReductionCounters] zeros between ops
  DeviceAdapters adapters;        // of the whole batch
  DeviceAdapters logit_adapters;  // of its logit rows
  Staging& staging;
  LibraryMatmul* library = nullptr;       // for products of many rows; nullptr: our own kernels
  bool always_dequantizes = false;        // CudaDeviceOptions
  bool scores_codes = true;               // CudaDeviceOptions
  LinearWays* ways = nullptr;             // ways of products; nullptr: as predicted
  bool times_products = false;            // shapes that `ways` does not know are timed
  int32_t attention_multiprocessors = 0;  // limit for attention; 0: all
  // The devices that share the layers with this one; nullptr: it has whole ones. Halves of a step
  // have one each, since kernels of both wait at the same time.
  PeerGroup* ranks = nullptr;
  bool over_nccl = false;       // what they exchange goes over NCCL, which the group has
  bool is_half = false;         // the ops are those of half a step
  bool of_logit_rows = false;   // the batch is that of the step's logit rows
  PeerGroup* stages = nullptr;  // of a device that has some of the layers; nullptr: it has all
  // Plans a grouping that the step has not met yet.
  std::function<absl::StatusOr<PlannedAttention>(const AttentionGrouping&)> plan_attention;

  // Stages the batch of the step's logit rows, if Plan has not.
  std::function<absl::StatusOr<NarrowBatch>()> narrow;

  // Calls a library's op in its turn: before the tape if that is empty, and behind it if no launch
  // waits for the op (`last`); else the step goes on without a tape.
  std::function<absl::Status(bool last, std::function<absl::Status()> call)> call_library;

  // Launches what the step's tape holds and goes on without it; `for_good`: steps of so many rows
  // cannot be graphs. Empty: there is no tape.
  std::function<absl::Status(bool for_good)> leave_tape;
  // Comes before work that no tape can keep: calls of a library, trials.
  void LeaveTape(bool for_good) {
    if (leave_tape) Note(leave_tape(for_good));
  }

  // Multiprocessors for products, beside the other half's attention.
  int32_t FreeMultiprocessors() const {
    return runtime.info().num_multiprocessors - attention_multiprocessors;
  }

  // The first failure, which ends the step: later ops do nothing (after a fault the device takes no
  // more work anyway).
  absl::Status status;
  void Note(Error error, const char* op) {
    if (status.ok() && error != kSuccess) status = runtime.ToStatus(error, op);
  }
  void Note(const absl::Status& failure) {
    if (status.ok()) status = failure;
  }
};

}  // namespace heddle::kernels::cuda
