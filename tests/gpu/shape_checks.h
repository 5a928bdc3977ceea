// One layer of well-known models at their real sizes, on a device and on the CPU backend. It finds
// what the small shapes of op_checks.h do not show, such as offsets beyond 32 bits, limits of
// launches, ways that only large products use, and launches of one step that differ in size.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace heddle::gpu {

struct ShapeReport {
  std::function<bool(const std::string& name)> begins;  // false: skip it
  // `distance`: the largest difference of any logit, as a share of the largest logit; where a load
  // is served, of any log-probability of the answers.
  std::function<void(const std::string& name, double distance, bool good)> ends;
};

// Checks each model with steps of all numbers of rows that go another way through products, and
// with a served load, whose answers are compared too. Errors of loading, and of served steps, are
// returned; one of another step aborts the program.
absl::Status CheckShapes(
    const std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>()>& make_device,
    const ShapeReport& report);

}  // namespace heddle::gpu
