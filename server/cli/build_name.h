// The name of the build of the program that runs.
//
// Thread-safety: pure function.
#pragma once

#include <string>
#include <string_view>

namespace heddle::server {

// "0.1.0 (build 9c5bfceefd468e77)": the version, and the first bytes of the identifier that the
// linker computes from all of the program's code and data. The version alone where the program was
// linked without one. Source: System V ABI, note sections; NT_GNU_BUILD_ID.
std::string BuildName(std::string_view version);

}  // namespace heddle::server
