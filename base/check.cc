#include "base/check.h"

#include <unistd.h>

#include <cstdlib>

#include "base/bounded_write.h"
#include "base/message.h"

namespace heddle::base {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  // A stopped reader must not keep a broken process from ending.
  constexpr std::chrono::milliseconds kLimit{1000};
  WriteWithin(STDERR_FILENO,
              StrCat(file, ":", line, ": check failed: ", condition, ": ", message, "\n"), kLimit);
  std::abort();
}

}  // namespace heddle::base
