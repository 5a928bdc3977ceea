// A place where a model runs: its memory, its packed weights, and its Ops.
//
// Life: create, Pack all weights, Allocate all buffers, run steps of warm_up_rows(); then, per
// step, Plan and Run, or Plan, Launch and Finish. All large memory is taken before serving.
// Thread-safety: none; owned by one rank's executor.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/batch.h"
#include "kernels/ops.h"

namespace heddle::kernels {

// Owned device memory, zero-filled at allocation, aligned to 64 bytes at least.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual int64_t bytes() const = 0;
};

struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
  int64_t reserve_bytes = 0;       // to leave of the available bytes for what is loaded at run time
  int64_t warm_reserve_bytes = 0;  // the same after a warm-up
};

// The peak rates that benchmarks compare with.
struct DeviceLimits {
  double read_gb_s = 0;  // reading memory far larger than the caches
  double gops = 0;       // the best matrix product; a multiply-add counts as two
};

// The largest states that a device's recurrences and time mixes take.
struct StateSizes {
  int32_t key_dim = std::numeric_limits<int32_t>::max();   // RecurrenceShape, all rules but one:
  int32_t selected = std::numeric_limits<int32_t>::max();  // key_dim of kSelective
  int32_t mix_dim = std::numeric_limits<int32_t>::max();   // WkvArgs::head_dim
};

// Times of a launched step by the device's own clock; -1 without one.
struct RunTiming {
  int64_t run_ns = -1;
  int64_t idle_ns = -1;  // between the step before and this one
};

// The most rows and sequences of a step, where nobody says.
struct StepSize {
  int32_t tokens = 512;
  int32_t seqs = 256;
};

class Communicator;      // kernels/communicator.h
struct NanoBatchDevice;  // kernels/nano_batch.h
struct NanoBatchProfile;

class Device {
 public:
  virtual ~Device() = default;

  // For start-up lines and metrics: "cpu (avx512+vnni+bf16, 2 threads)".
  virtual std::string description() const = 0;
  virtual DType activation_dtype() const = 0;
  // Whether its attention reads KV caches of this type, one of kv_cache.h's.
  virtual bool HasKvType(DType dtype) const {
    return dtype != DType::kInt8 && dtype != DType::kF8E4M3;
  }
  // Sums of `dim` columns that Ops::SumRows makes in one step. 0: it has no such op, or rows are
  // read as fast as their sums.
  virtual int32_t max_row_sums(int64_t) const { return 0; }
  // Memory that Pack takes for one row of a matrix of `dtype`. REQUIRES: cols in whole blocks.
  virtual int64_t PackedRowBytes(DType dtype, int64_t cols) const { return RowBytes(dtype, cols); }
  // Measures its peak rates now, in memory that it already has; blocks for some 30 ms.
  // UNIMPLEMENTED if they are measured apart from devices: kernels/cpu/limits.h.
  virtual absl::StatusOr<DeviceLimits> MeasureLimits() {
    return absl::UnimplementedError("this device's limits are not its own to measure");
  }
  // The free memory for Allocate and Pack at present; empty if that is the host's memory.
  virtual std::optional<DeviceMemory> memory() const { return std::nullopt; }

  // Ascending sizes of steps in rows, continued beyond the last one in powers of two. The device is
  // slower, and takes memory, when it first runs a step of such a size, or of one between it and
  // the previous size: it loads code and times alternatives. Whoever loads a model then runs steps
  // of these sizes before serving. Empty: no warm-up is needed.
  virtual std::span<const int32_t> warm_up_rows() const { return {}; }
  // Warnings at start: libraries that are missing and what that costs; one line each.
  virtual std::vector<std::string> Advice() const { return {}; }
  // The choices that it has made by timing, for logs; one line each.
  virtual std::vector<std::string> TimedChoices() const { return {}; }

  // RESOURCE_EXHAUSTED with the bytes requested and free, if it does not fit.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;

  // From now on its ops across ranks meet those of the group's other devices. UNIMPLEMENTED on a
  // device that has no such ops. REQUIRES: called once, before the first step.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> communicator);
  // The same for rows that pass between the stages of a pipeline: ranks of `stages` are stages.
  virtual absl::Status JoinStages(std::shared_ptr<Communicator> stages);

  // Copies `sources`, stacked along rows (all of equal cols; dtypes may differ), into the kernels'
  // layout. Both Linear and Embed accept the result. INVALID_ARGUMENT if rows are not whole blocks.
  // The sources may be unmapped afterwards.
  virtual absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) = 0;

  // Packs `count` matrices of one shape for ops that take one per expert or head: `sources` holds
  // those of the first matrix, stacked as in Pack, then those of the second, and so on. REQUIRES:
  // count >= 1 divides the number of sources.
  virtual absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(
      std::span<const WeightSource> sources, int32_t count) = 0;

  // Copy between host memory and a buffer's; they block until done. A device's memory need not be
  // the host's: all other code must use these functions to access it.
  virtual absl::Status Upload(void* to_device, const void* from_host, int64_t bytes);
  virtual absl::Status Download(void* to_host, const void* from_device, int64_t bytes);

  // The same concurrently with enqueued work instead of after it. REQUIRES: enqueued work does not
  // write that memory, and does not read memory that UploadBeside writes.
  virtual absl::Status UploadBeside(void* to_device, const void* from_host, int64_t bytes) {
    return Upload(to_device, from_host, bytes);
  }
  virtual absl::Status DownloadBeside(void* to_host, const void* from_device, int64_t bytes) {
    return Download(to_host, from_device, bytes);
  }

  // Takes over the step's batch (copied to fixed addresses) and plans work that depends on lengths.
  virtual absl::Status Plan(const HostBatch& batch) = 0;

  // From the next Plan on, splits steps into halves that run concurrently where `profile` says so:
  // the results are the same except for rounding. UNIMPLEMENTED on devices that run plans whole.
  virtual absl::Status SetNanoBatches(const NanoBatchProfile& profile);
  // UNIMPLEMENTED as above.
  virtual absl::StatusOr<NanoBatchDevice> nano_batch_device() const;

  // Runs `body` once with this device's ops and waits for its end. Results that ops write to host
  // memory (SampleArgs) are valid when Run returns, not before.
  virtual absl::Status Run(const std::function<void(Ops&)>& body) = 0;

  // Whether its Sample knows `shares` and `proposed` (SampleRowParams); others ignore them.
  virtual bool samples_by_rejection() const { return false; }

  // Run in two halves: Launch enqueues the body's ops, and Finish waits for the end of the oldest
  // launch and writes its results to host memory. Up to max_in_flight() steps may be planned and
  // launched without a Finish; Upload, Download and CopyPage take place in the order of the calls.
  // With 1 everything happens in Launch. REQUIRES for Run: nothing is launched.
  virtual int32_t max_in_flight() const { return 1; }
  virtual absl::Status Launch(const std::function<void(Ops&)>& body) { return Run(body); }
  // Adds ops to the step that was launched last, which depend on data that was not known then. They
  // run on its batch, behind its ops; Finish waits for these as well. REQUIRES: no Plan since, and
  // Launch's body sampled nothing.
  virtual absl::Status Extend(const std::function<void(Ops&)>& body) { return Run(body); }
  virtual absl::StatusOr<RunTiming> Finish() { return RunTiming(); }
  // Waits for all enqueued work, without finishing it.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }

  // Copies the first num_tokens positions of page `from` to page `to`, keys and values of a layer.
  virtual void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) = 0;

  // The best number of rows of logits to compute at a time, if so many are drawn from: the head's
  // weights are read once for them.
  virtual int32_t preferred_logit_rows() const { return 64; }

  // The size of steps by which it serves best, within its memory.
  virtual StepSize preferred_step() const { return {}; }
  // The widest heads, and the most rotated dimensions of one, that its ops take.
  virtual int32_t max_head_dim() const { return std::numeric_limits<int32_t>::max(); }
  virtual int32_t max_rotary_dim() const { return std::numeric_limits<int32_t>::max(); }
  virtual StateSizes max_states() const { return {}; }

  // The 16-bit type of KV cache with which its attention is faster.
  virtual DType preferred_kv_type() const { return DType::kF16; }
};

struct CpuDeviceOptions {
  int32_t num_threads = 0;   // 0: one per core that this process may use
  std::string isa = "auto";  // auto, or a level of kernels/cpu/cpuid.h
  bool pin_threads = false;
};

// INVALID_ARGUMENT if `isa` is unknown or not supported by the machine (the message lists what is).
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

// Plain loops over the reference implementations, single-threaded; tests compare with it.
std::unique_ptr<Device> CreateReferenceDevice();

}  // namespace heddle::kernels
