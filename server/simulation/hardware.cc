#include "server/simulation/hardware.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "kernels/cpu/limits.h"

namespace heddle::server {
namespace {

constexpr std::string_view kHost = "host";
constexpr int64_t kGb = 1'000'000'000;

// The shares and fixed times are explained in the header.
constexpr double kGpuBandwidthShare = 0.8;
constexpr double kGpuComputeShare = 0.6;
constexpr double kGpuStepUs = 300;
constexpr double kCpuBandwidthShare = 0.85;
constexpr double kCpuComputeShare = 0.6;
constexpr double kCpuStepUs = 200;
// A meeting of kernels on two GPUs that sum a row, from others' figures: vLLM's for 0.5 MB on two
// H100 is 7 us (its issue 24111), of which NVLink moves the bytes in 1.2. Not measured here.
constexpr double kGpuMeetingUs = 5;
// The same through the host's memory, by reckoning: letters of both over PCIe, the host's thread,
// and the copies of the parts, some microseconds each. Not measured.
constexpr double kHostMeetingUs = 20;

struct Row {
  std::string_view name;
  std::string_view description;
  bool is_gpu;
  double read_gb_s;
  double f32_tflop_s;
  double f16_tflop_s;
  double int8_top_s;
  int64_t memory_gb;
  double link_gb_s = 0;  // to another GPU, each way
  bool through_host = false;
};

// From NVIDIA's data sheets: SXM modules if there are several, dense rates; links are NVLink, or
// PCIe 4 x16 where there is none and the driver lets GPUs reach each other. Where it does not, a
// part goes to the host at 25 GB/s, is copied there by a thread at 10 GB/s, and goes on at 25 GB/s.
// The CPU is from docs/benchmarks, two threads.
constexpr Row kRows[] = {
    {"h200", "NVIDIA H200 SXM", true, 4800, 67, 989, 1979, 141, 450},
    {"h100", "NVIDIA H100 SXM", true, 3350, 67, 989, 1979, 80, 450},
    {"a100", "NVIDIA A100 SXM 80 GB", true, 2039, 19.5, 312, 624, 80, 300},
    {"l40s", "NVIDIA L40S", true, 864, 91.6, 362, 733, 48, 32},
    {"l4", "NVIDIA L4", true, 300, 30.3, 121, 242, 24, 32},
    {"rtx4090", "NVIDIA GeForce RTX 4090", true, 1008, 82.6, 165.2, 660.6, 24, 5.5, true},
    {"cpu-2core", "2 cores of a Zen 5 server with AVX-512", false, 45, 0.47, 0.94, 1.88, 0},
};

Hardware FromRow(const Row& row) {
  return {.name = std::string(row.name),
          .description = std::string(row.description),
          .is_gpu = row.is_gpu,
          .read_gb_s = row.read_gb_s,
          .f32_gflop_s = 1e3 * row.f32_tflop_s,
          .f16_gflop_s = 1e3 * row.f16_tflop_s,
          .int8_gop_s = 1e3 * row.int8_top_s,
          .memory_bytes = row.memory_gb * kGb,
          .bandwidth_share = row.is_gpu ? kGpuBandwidthShare : kCpuBandwidthShare,
          .compute_share = row.is_gpu ? kGpuComputeShare : kCpuComputeShare,
          .step_us = row.is_gpu ? kGpuStepUs : kCpuStepUs,
          .link_gbit_s = 8 * row.link_gb_s,
          .link_us = row.through_host    ? kHostMeetingUs
                     : row.link_gb_s > 0 ? kGpuMeetingUs
                                         : 0,
          .meets_through_host = row.through_host};
}

absl::StatusOr<Hardware> MeasureHost() {
  HEDDLE_ASSIGN_OR_RETURN(kernels::cpu::LimitMeter meter, kernels::cpu::LimitMeter::Create({}));
  const kernels::cpu::MachineLimits limits = meter.All();
  return Hardware{
      .name = std::string(kHost),
      .description = absl::StrFormat("this machine, measured now: %.0f GB/s, %.0f F32 "
                                     "GFLOP/s, %.0f int8 GOP/s",
                                     limits.read_gb_s, limits.fma_gflop_s, limits.int8_gop_s),
      .read_gb_s = limits.read_gb_s,
      .f32_gflop_s = limits.fma_gflop_s,
      .f16_gflop_s = limits.bf16_gflop_s,
      .int8_gop_s = limits.int8_gop_s,
      .bandwidth_share = kCpuBandwidthShare,
      .compute_share = kCpuComputeShare,
      .step_us = kCpuStepUs};
}

}  // namespace

std::vector<std::string_view> HardwareNames() {
  std::vector<std::string_view> names = {kHost};
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

absl::StatusOr<Hardware> FindHardware(std::string_view name) {
  if (name == kHost) return MeasureHost();
  for (const Row& row : kRows) {
    if (row.name == name) return FromRow(row);
  }
  return absl::NotFoundError(base::StrCat(
      "no hardware ", base::Quote(name), " in the table; there are ",
      absl::StrJoin(HardwareNames(), ", ",
                    [](std::string* out, std::string_view known) { out->append(known); })));
}

double MatrixGopPerSecond(const Hardware& hardware, std::string_view weight_format) {
  if (weight_format == "f32") return hardware.f32_gflop_s;
  if (hardware.is_gpu || weight_format == "bf16") return hardware.f16_gflop_s;
  return weight_format == "f16" ? hardware.f32_gflop_s : hardware.int8_gop_s;
}

double AttentionGopPerSecond(const Hardware& hardware) {
  return hardware.is_gpu ? hardware.f16_gflop_s : hardware.f32_gflop_s;
}

}  // namespace heddle::server
