// Checks of error messages: which facts a message must name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "catch2/catch.hpp"

namespace heddle::test {

// CHECKs that `status` has this code and that its message contains every one of `facts`.
inline void CheckError(const absl::Status& status, absl::StatusCode code,
                       std::initializer_list<std::string_view> facts) {
  std::string message(status.message().data(), status.message().size());
  INFO("status: " << status.ToString());
  CHECK(status.code() == code);
  for (std::string_view fact : facts) {
    INFO("expected in the message: " << std::string(fact));
    CHECK(message.find(fact) != std::string::npos);
  }
}

}  // namespace heddle::test
