// Two API keys for tests of what belongs to whom.
#pragma once

namespace heddle::test {

// printf %s sk-one | sha256sum; printf %s sk-two | sha256sum
inline constexpr const char* kKeys =
    "alice 456f1612bd25c6c8455039437bf441f43aa3b7d1c0b0047c712d5036dfebef0d\n"
    "bob 5e31278545505db1d65bf1dd696e8eaa1edfb00ba455e21c83200c04ef643c91\n";
inline constexpr const char* kAlice = "Authorization: Bearer sk-one\r\n";
inline constexpr const char* kBob = "Authorization: Bearer sk-two\r\n";

}  // namespace heddle::test
