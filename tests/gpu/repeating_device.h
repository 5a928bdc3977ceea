// A device that runs every step several times from the same memory and compares all that it leaves
// there, bit by bit. What differs is a race, or depends on an order that nothing fixes; a
// comparison with a reference sees neither where the error is small or rare.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/nano_batch.h"

namespace heddle::gpu {

// Only buffers of Allocate are compared, not the device's own scratch. Borrows the other device.
// Thread-safety: none.
class RepeatingDevice final : public kernels::Device {
 public:
  // repeats >= 1; 1: it only passes calls on.
  RepeatingDevice(kernels::Device& device, int32_t repeats) : device_(device), repeats_(repeats) {}

  // Runs that differed from the first of theirs since the last call.
  int64_t TakeDiffering() { return std::exchange(differing_, 0); }

  std::string description() const override { return device_.description(); }
  kernels::DType activation_dtype() const override { return device_.activation_dtype(); }
  bool HasKvType(kernels::DType dtype) const override { return device_.HasKvType(dtype); }
  absl::StatusOr<kernels::NanoBatchDevice> nano_batch_device() const override {
    return device_.nano_batch_device();
  }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(int64_t bytes) override {
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, device_.Allocate(bytes));
    return std::make_unique<Watched>(*this, std::move(buffer), bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Pack(
      std::span<const kernels::WeightSource> sources) override {
    return device_.Pack(sources);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedStack>> PackStack(
      std::span<const kernels::WeightSource> sources, int32_t count) override {
    return device_.PackStack(sources, count);
  }
  absl::Status Upload(void* to, const void* from, int64_t bytes) override {
    return device_.Upload(to, from, bytes);
  }
  absl::Status Download(void* to, const void* from, int64_t bytes) override {
    return device_.Download(to, from, bytes);
  }
  absl::Status Plan(const kernels::HostBatch& batch) override { return device_.Plan(batch); }
  void CopyPage(const kernels::KvCacheView& cache, int32_t from, int32_t to,
                int32_t num_tokens) override {
    device_.CopyPage(cache, from, to, num_tokens);
  }

  absl::Status Run(const std::function<void(kernels::Ops&)>& body) override {
    if (repeats_ == 1) return device_.Run(body);
    HEDDLE_ASSIGN_OR_RETURN(const Content before, Read());
    HEDDLE_RETURN_IF_ERROR(device_.Run(body));
    HEDDLE_ASSIGN_OR_RETURN(const Content first, Read());
    for (int32_t i = 1; i < repeats_; ++i) {
      for (const auto& [data, bytes] : before) {
        HEDDLE_RETURN_IF_ERROR(
            device_.Upload(data, bytes.data(), static_cast<int64_t>(bytes.size())));
      }
      HEDDLE_RETURN_IF_ERROR(device_.Run(body));
      HEDDLE_ASSIGN_OR_RETURN(const Content again, Read());
      differing_ += again == first ? 0 : 1;
    }
    return absl::OkStatus();
  }

 private:
  using Content = std::map<void*, std::vector<uint8_t>>;

  class Watched final : public kernels::Buffer {
   public:
    Watched(RepeatingDevice& owner, std::unique_ptr<kernels::Buffer> buffer, int64_t bytes)
        : owner_(owner), buffer_(std::move(buffer)) {
      owner_.live_[buffer_->data()] = bytes;
    }
    ~Watched() override { owner_.live_.erase(buffer_->data()); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    void* data() override { return buffer_->data(); }
    int64_t bytes() const override { return buffer_->bytes(); }

   private:
    RepeatingDevice& owner_;
    std::unique_ptr<kernels::Buffer> buffer_;
  };

  absl::StatusOr<Content> Read() {
    Content content;
    for (const auto& [data, bytes] : live_) {
      std::vector<uint8_t>& copy = content[data];
      copy.resize(static_cast<size_t>(bytes));
      HEDDLE_RETURN_IF_ERROR(device_.Download(copy.data(), data, bytes));
    }
    return content;
  }

  kernels::Device& device_;
  const int32_t repeats_;
  std::map<void*, int64_t> live_;
  int64_t differing_ = 0;
};

}  // namespace heddle::gpu
