#include "server/cli/free_memory.h"

#include <malloc.h>

namespace heddle::server {

int64_t FreeHeapBytes() {
#ifdef __GLIBC__
  return static_cast<int64_t>(mallinfo2().fordblks);
#else
  return 0;
#endif
}

bool FreeMemory::Check(Clock::time_point now) {
  if (now - last_check_ < kInterval) return false;
  last_check_ = now;
  if (FreeHeapBytes() < kMostFreeBytes) return false;
#ifdef __GLIBC__
  return malloc_trim(0) == 1;
#else
  return false;
#endif
}

}  // namespace heddle::server
