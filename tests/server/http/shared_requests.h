// Requests that several tests of HTTP routes send, replies that their engines give, and the error
// in an answer.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "server/generation.h"
#include "tests/server/raw_client.h"

namespace heddle::test {

inline std::string SayHi(const server::GenerationRequest&) { return "hi"; }
inline std::string SayHiThere(const server::GenerationRequest&) { return "hi there"; }
inline std::string SayOk(const server::GenerationRequest&) { return "ok"; }

inline constexpr const char* kChat =
    R"({"model":"test-model","messages":[{"role":"user","content":"x"}]})";
inline constexpr const char* kChatStream =
    R"({"model":"test-model","stream":true,"messages":[{"role":"user","content":"x"}]})";
// Each token becomes about two kilobytes.
inline constexpr const char* kWordyStream =
    R"({"stream":true,"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":20})";

// Throw nlohmann's exceptions, which fail the test, unless the answer is an error.
inline nlohmann::json ErrorOf(const RawResponse& response) {
  return nlohmann::json::parse(response.body).at("error");
}
inline std::string ErrorMessage(const RawResponse& response) {
  return ErrorOf(response).at("message");
}

// Sends a request without a body; `headers` are whole lines.
inline RawResponse SendEmpty(RawClient* client, const std::string& method, const std::string& path,
                             const std::string& headers = "") {
  client->Send(method + " " + path + " HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n" + headers +
               "\r\n");
  return client->Read(/*head_request=*/method == "HEAD");
}

}  // namespace heddle::test
