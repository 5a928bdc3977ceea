// How a request asks to be served beside others, under each policy of the server.
#include "server/openai/scheduling.h"
#include "server/openai/openai_request.h"

#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/openai/openai_request.h"
#include "server/request/api_error.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using scheduler::PolicyKind;
using server::ApiError;
using server::ApiRequest;

absl::StatusOr<ApiRequest> Parse(PolicyKind policy, const std::string& members,
                                 uint64_t tenant = 0) {
  static const ByteCodec codec;
  server::ServedModel model;
  model.id = "test-model";
  model.max_context = 100;
  server::RequestContext context{&model, &codec};
  context.policy.scheduling = policy;
  context.tenant = tenant;
  return server::ParseRequest(server::Endpoint::kCompletion,
                              base::StrCat(R"({"prompt":"a",)", members, "}"), context);
}

scheduler::GenerationRequest Parsed(PolicyKind policy, const std::string& members,
                                    uint64_t tenant = 0) {
  auto request = Parse(policy, members, tenant);
  INFO(members << " -> " << request.status());
  REQUIRE(request.ok());
  return request->generations.at(0);
}

ApiError Refused(PolicyKind policy, const std::string& members) {
  auto request = Parse(policy, members);
  INFO(members);
  REQUIRE_FALSE(request.ok());
  return server::ToApiError(request.status());
}

TEST_CASE("A priority counts where the policy is priority, and is refused elsewhere", "[openai]") {
  CHECK(Parsed(PolicyKind::kPriority, R"("priority":-3)").priority == -3);
  CHECK(Parsed(PolicyKind::kFcfs, R"("priority":0)").priority == 0);
  ApiError error = Refused(PolicyKind::kFcfs, R"("priority":1)");
  CHECK(error.http_status == 400);
  CHECK(error.param == "priority");
  CHECK(error.code == "unsupported_parameter");
  CHECK(error.message.find("--policy priority") != std::string::npos);
  CHECK(Refused(PolicyKind::kPriority, R"("priority":"high")").code == "invalid_type");
  CHECK(Refused(PolicyKind::kPriority, R"("priority":1e10)").param == "priority");
}

TEST_CASE("Requests share computed prompts with those of the same salt only", "[openai]") {
  const uint64_t a = Parsed(PolicyKind::kFcfs, R"("cache_salt":"a")").cache_space;
  CHECK(a != 0);
  CHECK(Parsed(PolicyKind::kFcfs, R"("cache_salt":"a")").cache_space == a);
  CHECK(Parsed(PolicyKind::kFcfs, R"("cache_salt":"b")").cache_space != a);
  CHECK(Parsed(PolicyKind::kFcfs, R"("cache_salt":null)").cache_space == 0);
  CHECK(Refused(PolicyKind::kFcfs, R"("cache_salt":"")").param == "cache_salt");
  CHECK(Refused(PolicyKind::kFcfs, R"("cache_salt":3)").code == "invalid_type");
}

TEST_CASE("A deadline is in milliseconds from now and may not have passed", "[openai]") {
  CHECK(Parsed(PolicyKind::kDeadline, R"("deadline_ms":250)").deadline_us == 250'000);
  CHECK(Parsed(PolicyKind::kDeadline, R"("deadline_ms":9e18)").deadline_us == 86'400'000'000);
  CHECK(Parsed(PolicyKind::kDeadline, R"("deadline_ms":null)").deadline_us == 0);
  for (const char* past : {R"("deadline_ms":0)", R"("deadline_ms":-5)"}) {
    ApiError error = Refused(PolicyKind::kDeadline, past);
    CHECK(error.param == "deadline_ms");
    CHECK(error.message.find("at least 1") != std::string::npos);
  }
  CHECK(Refused(PolicyKind::kFair, R"("deadline_ms":250)").code == "unsupported_parameter");
}

TEST_CASE("Workflows of one name are one within a tenant and two between tenants", "[openai]") {
  uint64_t a = Parsed(PolicyKind::kDeadline, R"("workflow":"w1")", 1).workflow;
  CHECK(a != 0);
  CHECK(Parsed(PolicyKind::kDeadline, R"("workflow":"w1")", 1).workflow == a);
  CHECK(Parsed(PolicyKind::kDeadline, R"("workflow":"w2")", 1).workflow != a);
  CHECK(Parsed(PolicyKind::kDeadline, R"("workflow":"w1")", 2).workflow != a);
  CHECK(Refused(PolicyKind::kDeadline, R"("workflow":"")").param == "workflow");
  CHECK(Refused(PolicyKind::kDeadline, R"("workflow":3)").code == "invalid_type");
  CHECK(Refused(PolicyKind::kPriority, R"("workflow":"w")").code == "unsupported_parameter");
}

TEST_CASE("The tenant goes with the request", "[openai]") {
  CHECK(Parsed(PolicyKind::kFair, R"("max_tokens":3)", 5).tenant == 5);
}

}  // namespace
}  // namespace heddle::test
