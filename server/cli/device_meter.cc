#include "server/cli/device_meter.h"

#include <utility>

#include "base/status.h"

namespace heddle::server {
namespace {

using kernels::cpu::LimitMeter;

// Peak of the instruction that multiplies this format: what is no integer is computed in F32.
double PeakFor(const std::string& format, LimitMeter& meter) {
  const bool is_float =
      format == "f32" || format == "f16" || format == "nf4" || format.compare(0, 3, "fp8") == 0;
  if (is_float) return meter.FmaGflopPerSecond();
  return format == "bf16" ? meter.Bf16GflopPerSecond() : meter.Int8GopPerSecond();
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
