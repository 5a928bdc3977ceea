// Zero-filled host memory straight from the operating system, in pages that it may back lazily.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace heddle::kernels {

// Owned, page-aligned, in huge pages if the system grants them; from 2 MiB on spread over all NUMA
// nodes that the process may use. RESOURCE_EXHAUSTED, naming `what` and both sizes, if it exceeds
// what the machine or this process's control group has available.
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(int64_t bytes, const char* what);

// Bytes that this process can still take: the lesser of the machine's available memory and the rest
// of its control group's limit.
int64_t AvailableHostBytes();

}  // namespace heddle::kernels
