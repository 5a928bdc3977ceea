// Binds threads to the processors of their rank, and their memory to those processors' nodes.
// Source: sched_setaffinity(2), set_mempolicy(2).
#pragma once

#include <span>

#include "absl/status/status.h"

namespace heddle::engine {

// From now on the calling thread, and threads that it starts, run on these processors only, and
// what they first touch lies on the nodes that they run on, rather than spread over all of them.
// Nothing changes if `cpus` is empty. FAILED_PRECONDITION, naming them, if this process may use
// none of them.
absl::Status BindThisThread(std::span<const int> cpus);

}  // namespace heddle::engine
