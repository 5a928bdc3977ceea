// HTTP/2 frames by hand, for clients that break the rules. Source: RFC 9113, section 4.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::test {

enum : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;
inline constexpr uint8_t kPadded = 8;
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string Number(uint32_t number, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>((number >> (8 * i)) & 0xFF);
  return out;
}

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                         std::string_view payload = "") {
  return Number(static_cast<uint32_t>(payload.size()), 3) + Number(type, 1) + Number(flags, 1) +
         Number(stream, 4) + std::string(payload);
}

// A gRPC message: a flag and its length before it.
inline std::string GrpcMessage(std::string_view payload) {
  return Number(0, 1) + Number(static_cast<uint32_t>(payload.size()), 4) + std::string(payload);
}

// A header block of literals (RFC 7541, section 6.2.2) that begins a call.
inline std::string CallHeaders(std::string_view path, std::string_view authorization = "") {
  std::string block;
  auto add = [&block](std::string_view name, std::string_view value) {
    block += Number(0, 1) + Number(static_cast<uint32_t>(name.size()), 1) + std::string(name) +
             Number(static_cast<uint32_t>(value.size()), 1) + std::string(value);
  };
  add(":method", "POST");
  add(":scheme", "http");
  add(":path", path);
  add(":authority", "localhost");
  add("te", "trailers");
  add("content-type", "application/grpc");
  if (!authorization.empty()) add("authorization", authorization);
  return block;
}

}  // namespace heddle::test
