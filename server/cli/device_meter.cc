#include "server/cli/device_meter.h"

#include <utility>

#include "base/status.h"

namespace heddle::server {
namespace {

using kernels::cpu::LimitMeter;

// The peak rate of the instruction that multiplies this format: F32 and F16 are computed in F32,
// small floats as BF16 (in F32 without such an instruction, which the meter knows), integers as
// int8.
double PeakFor(const std::string& format, LimitMeter& meter) {
  if (format == "f32" || format == "f16") return meter.FmaGflopPerSecond();
  const bool is_small_float = format == "bf16" || format == "nf4" || format.starts_with("fp8");
  return is_small_float ? meter.Bf16GflopPerSecond() : meter.Int8GopPerSecond();
}

}  // namespace

DeviceMeter::DeviceMeter(kernels::Device& device, std::string format)
    : device_(device), format_(std::move(format)) {}

absl::StatusOr<DeviceMeter> DeviceMeter::Create(kernels::Device& device,
                                                const kernels::CpuDeviceOptions& cpu,
                                                const std::string& format) {
  DeviceMeter meter(device, format);
  const absl::Status own = device.MeasureLimits().status();
  if (own.ok()) return meter;
  if (!absl::IsUnimplemented(own)) return own;
  HEDDLE_ASSIGN_OR_RETURN(LimitMeter host, LimitMeter::Create(cpu));
  meter.host_.emplace(std::move(host));
  return meter;
}

absl::StatusOr<kernels::DeviceLimits> DeviceMeter::Measure() {
  if (!host_) return device_.MeasureLimits();
  kernels::DeviceLimits limits;
  limits.gops = PeakFor(format_, *host_);
  limits.read_gb_s = host_->ReadGbPerSecond();
  return limits;
}

}  // namespace heddle::server
