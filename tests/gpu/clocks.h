// Clocks and power of the GPU while something is measured, sampled by a thread: a figure of a GPU
// that was slowed down by heat or by its power limit is none of its kernels. By NVIDIA's management
// library, which comes with the driver and is opened at run time; without it there are no samples.
// Source: NVML API Reference Guide.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace heddle::gpu {

// Means over the samples since the last Take.
struct ClockSample {
  int64_t count = 0;
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  double least_sm_mhz = 0;

  // Text like ", \"sm_MHz\": 1755, ...", for a line of JSON; "" without samples.
  std::string ToJson() const;
};

// The functions of the library that are used; tests have their own.
class ClockSource {
 public:
  virtual ~ClockSource() = default;
  // False: there is none now.
  virtual bool Read(double* sm_mhz, double* memory_mhz, double* watts, double* celsius) = 0;
  // The first GPU's source. nullptr without the library or a GPU that it sees.
  static std::unique_ptr<ClockSource> Open();
};

// Thread-safety: one thread calls it; the samples come from another one.
class Clocks {
 public:
  // nullptr: no samples.
  explicit Clocks(std::unique_ptr<ClockSource> source);
  ~Clocks();
  Clocks(const Clocks&) = delete;
  Clocks& operator=(const Clocks&) = delete;
  ClockSample Take();

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace heddle::gpu
