#include "kernels/device.h"

#include <cstring>

#include "base/check.h"
#include "kernels/communicator.h"
#include "kernels/nano_batch.h"

namespace heddle::kernels {

absl::StatusOr<NanoBatchDevice> Device::nano_batch_device() const {
  return absl::UnimplementedError(
      description() +
      " runs every step whole: splitting it in halves that run side by side is for GPUs; use "
      "--device cuda:N");
}

absl::Status Device::SetNanoBatches(const NanoBatchProfile&) {
  return nano_batch_device().status();
}

// Devices that can join keep it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
absl::Status Device::JoinGroup(std::shared_ptr<Communicator>) {
  return absl::UnimplementedError(description() +
                                  " cannot share a model with other devices yet; --tp is for "
                                  "--device cpu");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param)
absl::Status Device::JoinStages(std::shared_ptr<Communicator>) {
  return absl::UnimplementedError(description() +
                                  " cannot be a stage of a pipeline yet; --pp is for --device cpu");
}

void Ops::SumRows(const SumRowsArgs&) { HEDDLE_CHECK(false, "this device has no sums of rows"); }

void Ops::NarrowToLogitRows() { HEDDLE_CHECK(false, "this batch keeps its rows"); }

void Ops::SendRows(Tensor, int32_t) { HEDDLE_CHECK(false, "this device is no stage"); }
void Ops::RecvRows(Tensor, int32_t) { HEDDLE_CHECK(false, "this device is no stage"); }

void Ops::EmbedShare(const PackedWeight&, int64_t, float, Tensor) {
  HEDDLE_CHECK(false, "this device is in no group of ranks");
}

void Ops::AllReduce(const AllReduceArgs&) {
  HEDDLE_CHECK(false, "this device is in no group of ranks");
}

void Ops::GatherColumns(const GatherColumnsArgs&) {
  HEDDLE_CHECK(false, "this device is in no group of ranks");
}

absl::Status Device::Upload(void* to_device, const void* from_host, int64_t bytes) {
  std::memcpy(to_device, from_host, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Device::Download(void* to_host, const void* from_device, int64_t bytes) {
  std::memcpy(to_host, from_device, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

}  // namespace heddle::kernels
