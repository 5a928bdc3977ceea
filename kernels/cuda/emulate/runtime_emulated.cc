// The runtime of the emulated device: everything is host memory and happens at once.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/emulate/emulator.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {
namespace {

// Few multiprocessors, so that plans made for them split small work in interesting ways.
constexpr int32_t kMultiprocessors = 6;
constexpr int64_t kTotalBytes = int64_t{8} << 30;
constexpr std::align_val_t kAlignment{256};  // as cudaMalloc aligns

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(int32_t ordinal) {
  if (ordinal != 0) {
    return absl::NotFoundError(
        absl::StrCat("cuda:", ordinal, " does not exist; this process sees 1 CUDA device"));
  }
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = {.name = "emulated",
                    .ordinal = 0,
                    .major = 9,
                    .minor = 0,
                    .num_multiprocessors = kMultiprocessors,
                    .total_bytes = kTotalBytes};
  return runtime;
}

Runtime::~Runtime() = default;

int64_t Runtime::FreeBytes() const { return kTotalBytes - allocated_bytes_; }

absl::StatusOr<void*> Runtime::AllocateDevice(int64_t bytes) {
  if (bytes > FreeBytes()) {
    return OutOfDeviceMemory(info_, bytes, FreeBytes(), allocated_bytes_);
  }
  void* data = ::operator new(static_cast<size_t>(bytes), kAlignment);
  std::memset(data, 0, static_cast<size_t>(bytes));
  allocated_bytes_ += bytes;
  return data;
}

void Runtime::FreeDevice(void* data, int64_t bytes) {
  if (data == nullptr) return;
  ::operator delete(data, kAlignment);
  allocated_bytes_ -= bytes;
}

absl::StatusOr<void*> Runtime::AllocatePinned(int64_t bytes) {
  return ::operator new(static_cast<size_t>(bytes), kAlignment);
}

void Runtime::FreePinned(void* data) { ::operator delete(data, kAlignment); }

absl::Status Runtime::CopyToDevice(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Runtime::Synchronize() { return absl::OkStatus(); }

absl::Status Runtime::ToStatus(Error error, const char* what) const {
  if (error == kSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("emulated ", what, ":\n", absl::StrJoin(emulate::TakeFindings(), "\n")));
}

}  // namespace heddle::kernels::cuda
