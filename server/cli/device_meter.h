// The limits of the device that a model runs on, measured beside each run: by the device itself or,
// on the host, for its processors.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/limits.h"
#include "kernels/device.h"

namespace heddle::server {

class DeviceMeter {
 public:
  // `device` must outlive the meter. `format` is that of the weights: on the host it selects the
  // instruction whose peak counts. Errors are those of LimitMeter::Create.
  static absl::StatusOr<DeviceMeter> Create(kernels::Device& device,
                                            const kernels::CpuDeviceOptions& cpu,
                                            const std::string& format);

  absl::StatusOr<kernels::DeviceLimits> Measure();

 private:
  DeviceMeter(kernels::Device& device, std::string format);

  kernels::Device& device_;
  std::string format_;
  std::optional<kernels::cpu::LimitMeter> host_;  // empty: the device measures itself
};

}  // namespace heddle::server
