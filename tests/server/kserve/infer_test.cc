// The Open Inference Protocol over HTTP. Source: KServe's "Open Inference Protocol (V2)", REST, and
// Triton's binary tensor data extension.
#include <memory>
#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/answer/answer.h"
#include "server/kserve/infer_format.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/kserve_models.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::InferRequest;
using server::RequestContext;

struct InferParser : ApiParser {
  absl::StatusOr<InferRequest> Infer(const std::string& body,
                                     std::optional<size_t> json_bytes = std::nullopt) const {
    RequestContext context{&model, &codec, kRandomSeed};
    context.json_bytes = json_bytes;
    return server::ParseInferRequest(body, context);
  }
  std::string Refused(const std::string& body,
                      std::optional<size_t> json_bytes = std::nullopt) const {
    const auto request = Infer(body, json_bytes);
    INFO(body);
    REQUIRE_FALSE(request.ok());
    CHECK(server::ToApiError(request.status()).http_status == 400);
    return server::ToApiError(request.status()).param;
  }
};

std::string Body(const std::string& input, const std::string& rest = "") {
  return R"({"inputs":[{"name":"text_input","datatype":"BYTES",)" + input + "}]" + rest + "}";
}

TEST_CASE("Texts of a tensor are prompts, and parameters fields of a completion", "[kserve]") {
  InferParser parser;
  const auto request = parser.Infer(Body(R"("shape":[2],"data":["a","b"])",
                                         R"(,"id":"7","parameters":{"max_tokens":3,"stream":true,)"
                                         R"("binary_data_output":true})"));
  INFO(request.status());
  REQUIRE(request.ok());
  CHECK(request->id == "7");
  CHECK_FALSE(request->api.stream);
  CHECK(parser.PromptText(request->api, 1) == "<s>b");
  CHECK(request->api.generations[0].max_tokens == 3);
  CHECK(parser.Infer(Body(R"("shape":[1,2],"data":[["a","b"]])")).ok());
}

TEST_CASE("A tensor may follow the JSON in binary", "[kserve]") {
  InferParser parser;
  const std::string header = Body(R"("shape":[2],"parameters":{"binary_data_size":11})");
  const std::string binary("\x01\0\0\0a\x02\0\0\0bc", 11);
  const auto request = parser.Infer(header + binary, header.size());
  INFO(request.status());
  REQUIRE(request.ok());
  CHECK(parser.PromptText(request->api, 1) == "<s>bc");
  CHECK(parser.Refused(header + binary.substr(0, 10), header.size()) == "inputs[0]");
  CHECK(parser.Refused(header + binary, header.size() + 100).empty());
  const std::string longer("\x09\0\0\0a\x02\0\0\0bc", 11);  // an element that says it is longer
  CHECK(parser.Refused(header + longer, header.size()) == "inputs[0]");
}

TEST_CASE("Tensors that are no prompts are refused by their part", "[kserve]") {
  InferParser parser;
  CHECK(parser.Refused(Body(R"("shape":[1],"data":["a","b"])")) == "inputs[0].shape");
  CHECK(parser.Refused(Body(R"("shape":[-1],"data":["a"])")) == "inputs[0].shape");
  CHECK(parser.Refused(Body(R"("shape":[4294967296,4294967296],"data":["a"])")) ==
        "inputs[0].shape");
  CHECK(parser.Refused(Body(R"("shape":[1],"data":[5])")) == "inputs[0].data");
  CHECK(parser.Refused(Body(R"("shape":[0],"data":[])")) == "inputs[0].shape");
  CHECK(
      parser.Refused(R"({"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["a"]}]})") ==
      "inputs[0]");
  CHECK(parser.Refused(R"({"inputs":[]})") == "inputs");
  CHECK(parser.Refused(Body(R"("shape":[1],"data":["a"])", R"(,"parameters":{"top_p":7})")) ==
        "top_p");
}

TEST_CASE("The texts of all choices are one tensor", "[kserve]") {
  InferParser parser;
  const auto request = parser.Infer(Body(R"("shape":[2],"data":["a","b"])", R"(,"id":"x")"));
  REQUIRE(request.ok());
  server::Answer answer(&request->api, &parser.codec,
                        std::make_unique<server::InferFormat>(&request->api, request->id));
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    server::GenerationEvent event;
    event.tokens = {{.token = static_cast<TokenId>('x' + prompt)}, {.token = kEos}};
    event.finished = true;
    server::Answer::Output output;
    answer.Take(prompt, std::move(event), &output);
  }
  CHECK(json::parse(answer.Body()) ==
        json::parse(R"({"model_name":"test-model","model_version":"1","id":"x","outputs":[)"
                    R"({"name":"text_output","datatype":"BYTES","shape":[2],"data":["x","y"]}]})"));
}

}  // namespace
}  // namespace heddle::test
