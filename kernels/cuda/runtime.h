// One GPU as the host sees it: its properties, memory, stream and copies. The only place, with the
// launchers, that calls the CUDA runtime; runtime_emulated.cc is the same on the host's memory.
//
// Errors: what the driver reports becomes a Status that names what was tried and what to do. After
// a fault in a kernel the context is lost ("sticky"): every later call fails with UNAVAILABLE.
// Thread-safety: none; used by one device, on its executor's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/params.h"

namespace heddle::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int32_t ordinal = 0;
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
};

class Runtime {
 public:
  // The oldest architecture that the kernels' instructions (cp.async, BF16 mma) exist on.
  static constexpr int32_t kMinMajor = 8;

  // FAILED_PRECONDITION without a driver, or with one too old for this build; NOT_FOUND if there
  // is no such device (the message says how many there are); UNIMPLEMENTED for a device older than
  // compute capability 8.0.
  static absl::StatusOr<std::unique_ptr<Runtime>> Open(int32_t ordinal);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const DeviceInfo& info() const { return info_; }
  Stream stream() const { return stream_; }
  int64_t FreeBytes() const;

  // Zero-filled. RESOURCE_EXHAUSTED says how much was asked for, is free and is missing, and how
  // much of the device others hold.
  absl::StatusOr<void*> AllocateDevice(int64_t bytes);
  void FreeDevice(void* data, int64_t bytes);
  // Page-locked host memory, which copies can read and write on their own.
  absl::StatusOr<void*> AllocatePinned(int64_t bytes);
  void FreePinned(void* data);

  // In stream order; the caller keeps host memory until Synchronize. Host memory that is not
  // pinned is allowed and makes the call block.
  absl::Status CopyToDevice(void* to, const void* from, int64_t bytes);
  absl::Status CopyToHost(void* to, const void* from, int64_t bytes);
  // Waits for all that was enqueued, and reports its faults.
  absl::Status Synchronize();

  // OK for kSuccess, else what the number means, prefixed with `what`.
  absl::Status ToStatus(Error error, const char* what) const;

 private:
  Runtime() = default;

  DeviceInfo info_;
  Stream stream_ = nullptr;
  int64_t allocated_bytes_ = 0;
};

// RESOURCE_EXHAUSTED in words; shared by both implementations.
absl::Status OutOfDeviceMemory(const DeviceInfo& info, int64_t wanted, int64_t free_bytes,
                               int64_t own_bytes);

}  // namespace heddle::kernels::cuda
