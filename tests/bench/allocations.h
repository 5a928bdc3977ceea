// Counts calls of operator new in programs that link allocations.cc.
#pragma once

#include <cstdint>

namespace heddle::bench {

int64_t NumAllocations();

}  // namespace heddle::bench
