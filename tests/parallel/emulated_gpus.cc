// Gives a program that is linked with the emulated CUDA backend a machine of four GPUs, whose host
// locks HEDDLE_EMULATED_PINNED_MIB of memory, or any number. With HEDDLE_EMULATED_APART they do not
// reach each other's memory.
#include <cstdint>
#include <cstdlib>

#include "tests/emulate/machine.h"

namespace heddle {
namespace {

[[maybe_unused]] const bool kIsSet = [] {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is no other thread yet.
  const char* mib = std::getenv("HEDDLE_EMULATED_PINNED_MIB");
  const int64_t pinned = mib == nullptr ? -1 : int64_t{std::atoi(mib)} << 20;
  const bool are_apart =
      std::getenv("HEDDLE_EMULATED_APART") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  kernels::cuda::emulate::SetMachine(
      {.device_count = 4, .has_peer_access = !are_apart, .pinned_bytes = pinned});
  return true;
}();

}  // namespace
}  // namespace heddle
