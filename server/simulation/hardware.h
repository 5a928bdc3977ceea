// Peak rates of machines by name, from the makers' data sheets or measured on this one, and the
// share of them that a step reaches: the one estimate in every roofline prediction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace heddle::server {

struct Hardware {
  std::string name;
  std::string description;
  bool is_gpu = false;
  double read_gb_s = 0;      // memory, 10^9 bytes per second
  double f32_gflop_s = 0;    // multiply-adds on F32; one counts as two, in all of these
  double f16_gflop_s = 0;    // on BF16 and F16, dense, sums in F32
  double int8_gop_s = 0;     // on int8, dense
  int64_t memory_bytes = 0;  // 0: unknown; the caller asks the machine
  // Shares of these rates that a whole step reaches, and its time that neither explains (launches,
  // sampling, planning). For the CPU they were measured by `heddle bench` (docs/benchmarks/cpu.md);
  // for GPUs they are what today's good kernels reach. `--profile` replaces all three by
  // measurements.
  double bandwidth_share = 1;
  double compute_share = 1;
  double step_us = 0;
  // From one GPU to another of the same machine, each way, and the time of a message.
  double link_gbit_s = 0;
  double link_us = 0;
  bool meets_through_host = false;  // GPUs of a machine do not reach each other's memory
};

// A row of the table; "host" is this machine, measured now by one thread per core (0.3 s).
// NOT_FOUND lists the names.
absl::StatusOr<Hardware> FindHardware(std::string_view name);
std::vector<std::string_view> HardwareNames();

// Operations per second, in 10^9, on weights of this format: GPUs multiply all short formats in
// BF16, the CPU multiplies quantised ones in int8 and F16 in F32, as our kernels do.
double MatrixGopPerSecond(const Hardware& hardware, std::string_view weight_format);
// The same for attention's scores and sums.
double AttentionGopPerSecond(const Hardware& hardware);

}  // namespace heddle::server
