// Sends host arrays to the device: copied into pinned memory, and from there by one asynchronous
// copy, to addresses that stay the same from step to step as long as sizes stay nearly the same.
//
// Life: Reset, then Add and Send as often as needed; the sent data stays valid until data sent
// after the next Reset follows it on the stream. The pinned memory exists kSets times, so that a
// step can be prepared while the previous step's copy waits in the stream.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

class Staging {
 public:
  explicit Staging(Runtime& runtime) : runtime_(runtime) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Takes the memory that steps usually need, so that steps take none.
  absl::Status Reserve();

  static constexpr int kSets = 2;

  // Uses the pinned memory of `set` from now on. REQUIRES: its previous copies were waited for.
  void Reset(int set);

  // Copies `items` and returns their address on the device after the next Send; nullptr if there
  // are none, or if memory ran out (Send then says so). Aligned to 16 bytes.
  template <typename T>
  const T* Add(std::span<const T> items) {
    if (items.empty()) return nullptr;
    return static_cast<const T*>(AddBytes(items.data(), static_cast<int64_t>(items.size_bytes())));
  }
  template <typename T>
  const T* Add(const std::vector<T>& items) {
    return Add(std::span<const T>(items));
  }

  // Enqueues the copy of the data added since the last Send.
  absl::Status Send();

 private:
  // There is more than one only while a step turns out larger than all before it.
  struct Block {
    uint8_t* host[kSets] = {};
    uint8_t* device = nullptr;
    int64_t bytes = 0;
    int64_t used = 0;
    int64_t sent = 0;
  };

  const void* AddBytes(const void* from, int64_t bytes);
  absl::Status Grow(int64_t bytes);
  void Free(Block& block);

  Runtime& runtime_;
  int set_ = 0;
  std::vector<Block> blocks_;
  absl::Status status_;
};

}  // namespace heddle::kernels::cuda
