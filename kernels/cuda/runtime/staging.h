// Host arrays on their way to the device: copied into pinned memory, from there by one asynchronous
// copy, to addresses that stay the same from step to step while sizes do, or nearly so.
//
// Life: Reset, then Add and Send as often as needed; what was sent stays valid until what is sent
// after the next Reset follows it on the stream. The pinned memory exists kSets times, so that a
// step can be prepared while the copy of the one before waits in the stream.
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

  // Takes the memory that steps usually need, so that none is taken later.
  absl::Status Reserve();

  static constexpr int kSets = 2;

  // From now on through the pinned memory of `set`. REQUIRES: what was sent through it before was
  // waited for.
  void Reset(int set);

  // Copies `items` and returns where they will be on the device after the next Send; nullptr for
  // none at all, or if memory ran out (Send then says so). Aligned to 16 bytes.
  template <typename T>
  const T* Add(std::span<const T> items) {
    if (items.empty()) return nullptr;
    return static_cast<const T*>(AddBytes(items.data(), static_cast<int64_t>(items.size_bytes())));
  }
  template <typename T>
  const T* Add(const std::vector<T>& items) {
    return Add(std::span<const T>(items));
  }

  // Enqueues the copy of what was added since the last Send.
  absl::Status Send();

 private:
  // More than one only while a step turns out larger than all before it.
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
