// Launches kept in order instead of being made: what a step enqueues, as data. A tape is compared
// with the one that a graph was made of, and the graph is changed where they differ.
//
// Includes neither CUDA nor Abseil: launchers write tapes, runtimes play them.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace heddle::kernels::cuda {

struct LaunchShape {
  int grid_x = 1;
  int grid_y = 1;
  int grid_z = 1;
  int threads = 128;
  int shared_bytes = 0;
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

class Tape {
 public:
  // Calls a kernel with its parameters on the host; for the emulator.
  using Caller = void (*)(const void* kernel, const void* params);

  struct Launch {
    const void* kernel = nullptr;
    Caller call = nullptr;
    LaunchShape shape;
    size_t params_at = 0;
    size_t params_bytes = 0;
  };

  void Clear() {
    launches_.clear();
    params_.clear();
  }

  // Copies the parameters. REQUIRES: their alignment is 16 at most.
  void Add(const void* kernel, Caller call, const LaunchShape& shape, const void* params,
           size_t bytes) {
    const size_t at = params_.size();
    launches_.push_back({kernel, call, shape, at, bytes});
    params_.resize(at + (bytes + 15) / 16 * 16);
    std::memcpy(params_.data() + at, params, bytes);
  }

  // Launch i becomes that of `other`, whose parameters have the same size.
  void Replace(size_t i, const Tape& other) {
    launches_[i].shape = other.launches_[i].shape;
    std::memcpy(params_.data() + launches_[i].params_at, other.params(i),
                launches_[i].params_bytes);
  }

  const std::vector<Launch>& launches() const { return launches_; }
  const void* params(size_t i) const { return params_.data() + launches_[i].params_at; }

  // Whether both launch the same kernels in the same order, whatever their shapes and parameters.
  bool HasKernelsOf(const Tape& other) const {
    if (launches_.size() != other.launches_.size()) return false;
    for (size_t i = 0; i < launches_.size(); ++i) {
      if (launches_[i].kernel != other.launches_[i].kernel) return false;
    }
    return true;
  }

  // Whether launch i is the same in both. REQUIRES: HasKernelsOf(other).
  bool HasLaunchOf(const Tape& other, size_t i) const {
    const Launch& mine = launches_[i];
    const Launch& its = other.launches_[i];
    return mine.shape == its.shape && mine.params_bytes == its.params_bytes &&
           std::memcmp(params(i), other.params(i), mine.params_bytes) == 0;
  }

 private:
  std::vector<Launch> launches_;
  std::vector<std::byte> params_;
};

// Where launches go.
struct LaunchQueue {
  void* stream = nullptr;  // cudaStream_t
  Tape* tape = nullptr;    // not null: launches are kept there instead
};

}  // namespace heddle::kernels::cuda
