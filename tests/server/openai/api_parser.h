// Parses requests of /v1/completions and /v1/chat/completions for a model whose context holds 100
// bytes.
#pragma once

#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "server/openai/openai_request.h"
#include "server/request/api_error.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {

inline constexpr uint64_t kRandomSeed = 77;  // of requests that give none

struct ApiParser {
  server::ServedModel model;
  ByteCodec codec;

  ApiParser() {
    model.id = "test-model";
    model.max_context = 100;
  }
  absl::StatusOr<server::ApiRequest> Parse(server::Endpoint endpoint,
                                           const std::string& body) const {
    return server::ParseRequest(endpoint, body, {&model, &codec, kRandomSeed});
  }
  server::ApiRequest Completion(const std::string& body) const {
    auto request = Parse(server::Endpoint::kCompletion, body);
    INFO(body << " -> " << request.status());
    REQUIRE(request.ok());
    return *std::move(request);
  }
  // `members` is added to a valid chat body.
  std::string ChatBody(const std::string& members) const {
    return base::StrCat(R"({"messages":[{"role":"user","content":"hi"}])",
                        members.empty() ? "" : ",", members, "}");
  }
  server::ApiRequest Chat(const std::string& members) const {
    auto request = Parse(server::Endpoint::kChat, ChatBody(members));
    INFO(members << " -> " << request.status());
    REQUIRE(request.ok());
    return *std::move(request);
  }
  server::ApiError Refused(server::Endpoint endpoint, const std::string& body) const {
    auto request = Parse(endpoint, body);
    INFO(body);
    REQUIRE_FALSE(request.ok());
    return server::ToApiError(request.status());
  }
  server::ApiError ChatRefused(const std::string& members) const {
    return Refused(server::Endpoint::kChat, ChatBody(members));
  }
  std::string PromptText(const server::ApiRequest& request, size_t i = 0) const {
    return codec.Decode(request.generations.at(i).prompt, /*skip_special=*/false);
  }
};

}  // namespace heddle::test
