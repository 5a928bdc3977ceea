// Recorded launches: the work that a step enqueues, as data. A tape is compared with the one that a
// graph was made from, and the graph is changed where they differ.
//
// Launches are on lanes. Those of one lane run one after the other; two lanes run concurrently
// except where Wait orders them. A launch that waits for another lane names one launch of it, so
// that fork and join are part of the tape.
// Includes neither CUDA nor Abseil: launchers write tapes, runtimes play them.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_set>
#include <vector>

namespace heddle::kernels::cuda {

struct LaunchShape {
  int grid_x = 1;
  int grid_y = 1;
  int grid_z = 1;
  int threads = 128;
  int shared_bytes = 0;
  // Whether it may begin before the previous launch on its lane has ended; the kernel itself waits
  // for that (WaitForPrevious in primitives.cuh).
  bool early = false;
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
    int lane = 0;
    int before = -1;       // of the same lane
    int after = -1;        // of the other lane: an earlier launch that must have ended; -1: none
    bool signals = false;  // a later one may wait for it
  };
  static constexpr int kLanes = 2;

  void Clear() {
    launches_.clear();
    params_.clear();
    for (Lane& lane : lanes_) lane = Lane();
  }

  // Lets other lanes wait for the present end of `lane`.
  void Signal(int lane) {
    lanes_[lane].signalled = lanes_[lane].last;
    if (lanes_[lane].last >= 0) launches_[static_cast<size_t>(lanes_[lane].last)].signals = true;
  }
  // Orders further work of `lane` after the end of `on` that was signalled last.
  void Wait(int lane, int on) { lanes_[lane].after = lanes_[on].signalled; }

  // Copies the parameters. REQUIRES: their alignment is 16 at most. A lane's first launch, and one
  // that waits for another lane, do not begin early.
  void Add(const void* kernel, Caller call, const LaunchShape& shape, const void* params,
           size_t bytes, int lane = 0) {
    const size_t at = params_.size();
    Lane& own = lanes_[lane];
    launches_.push_back({kernel, call, shape, at, bytes, lane, own.last, own.after});
    launches_.back().shape.early = shape.early && own.last >= 0 && own.after < 0;
    own = {.last = static_cast<int>(launches_.size()) - 1, .signalled = own.signalled};
    params_.resize(at + (bytes + 15) / 16 * 16);
    std::memcpy(params_.data() + at, params, bytes);
  }

  // Replaces launch i by that of `other`, whose parameters have the same size.
  void Replace(size_t i, const Tape& other) {
    launches_[i].shape = other.launches_[i].shape;
    std::memcpy(params_.data() + launches_[i].params_at, other.params(i),
                launches_[i].params_bytes);
  }

  const std::vector<Launch>& launches() const { return launches_; }
  const void* params(size_t i) const { return params_.data() + launches_[i].params_at; }

  // Whether both launch the same kernels in the same order on the same lanes, whatever their shapes
  // and parameters.
  bool HasKernelsOf(const Tape& other) const {
    if (launches_.size() != other.launches_.size()) return false;
    for (size_t i = 0; i < launches_.size(); ++i) {
      const Launch& mine = launches_[i];
      const Launch& its = other.launches_[i];
      if (mine.kernel != its.kernel || mine.lane != its.lane || mine.after != its.after)
        return false;
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
  struct Lane {  // indices of launches, or -1
    int last = -1;
    int signalled = -1;
    int after = -1;  // for the next one
  };

  Lane lanes_[kLanes];
  std::vector<Launch> launches_;
  std::vector<std::byte> params_;
};

// Kernels that were given what they need of a device, which holds for all their later launches.
class PreparedKernels {
 public:
  bool Has(const void* kernel) const { return kernels_.count(kernel) > 0; }
  void Add(const void* kernel) { kernels_.insert(kernel); }

 private:
  std::unordered_set<const void*> kernels_;
};

// The destination of launches.
struct LaunchQueue {
  void* stream = nullptr;               // cudaStream_t
  PreparedKernels* prepared = nullptr;  // of the device; all its queues share them
  Tape* tape = nullptr;                 // not null: launches are recorded here instead
  int lane = 0;
  int32_t max_shared_bytes = 0;  // limit per block on the device
  bool early = false;            // the device lets launches begin early
  bool one_split = false;        // kernels all ask for as much shared memory as there is
  mutable bool joins = false;    // the next launch has other predecessors: not early
};

}  // namespace heddle::kernels::cuda
