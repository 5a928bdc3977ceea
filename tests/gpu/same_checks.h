// A fixed load (stepped_answers.h) on one device after the other, each with something left out that
// must change no token: graphs, early launches, plans ahead of tokens, kernels of warpgroups,
// pages, drafts. An error of a device that shows in no single op shows here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"

namespace heddle::gpu {

struct SameReport {
  std::function<bool(const std::string& name)> begins;  // false: skip it
  std::function<void(const std::string& name, bool good, const std::string& text)> ends;
};

// `model`: the path of one, or a built-in shape, of which two layers with random weights of format
// `weights` are run. Launches that do the same otherwise must give the same bits. Where steps are
// other ones, or other kernels run them, rows are rounded otherwise, and log-probabilities must
// stay within 0.1 until answers part where two tokens are as likely as that.
absl::Status CheckSame(const std::string& model, std::string_view weights, int32_t most_tokens,
                       const std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>(
                           const kernels::CudaDeviceOptions&)>& make_device,
                       const SameReport& report);

}  // namespace heddle::gpu
