// Measures the peak rates of this machine, the yardstick of every benchmark. Memory bandwidth of
// shared machines changes from minute to minute, so measure beside the run that is judged.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace heddle::kernels::cpu {

struct MachineLimits {
  double read_gb_s = 0;     // all threads streaming memory far larger than the caches
  double fma_gflop_s = 0;   // F32 multiply-adds from registers; one counts as two
  double bf16_gflop_s = 0;  // dot products of BF16; fma_gflop_s without such an instruction
  double int8_gop_s = 0;    // int8 multiply-adds from registers; one counts as two
};

// Measures with the level and threads of `options`, some 0.2 s, in 256 MiB of memory.
// With one thread, rates are per second of its CPU time.
// INVALID_ARGUMENT as CreateCpuDevice, RESOURCE_EXHAUSTED without the memory.
class LimitMeter {
 public:
  static absl::StatusOr<LimitMeter> Create(const CpuDeviceOptions& options);
  LimitMeter(LimitMeter&&) noexcept;
  ~LimitMeter();

  double ReadGbPerSecond();     // some 30 ms
  double FmaGflopPerSecond();   // some 20 ms
  double Bf16GflopPerSecond();  // some 20 ms
  double Int8GopPerSecond();    // some 20 ms
  MachineLimits All();

 private:
  struct State;
  explicit LimitMeter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace heddle::kernels::cpu
