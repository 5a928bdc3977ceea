// HEDDLE_CHECK states a condition that holds unless this program has a bug. The content of a
// request or a file must never reach it: those get an absl::Status.
#pragma once

#include <string_view>

namespace heddle::base {

// Prints file, line, condition and message to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace heddle::base

#define HEDDLE_CHECK(condition, message)                                      \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::heddle::base::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
