#include "server/grpc/open_inference.h"

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

inference::ModelInferRequest OneText(const std::string& text) {
  inference::ModelInferRequest request;
  request.set_model_name("m");
  auto* input = request.add_inputs();
  input->set_name("text_input");
  input->set_datatype("BYTES");
  input->add_shape(1);
  input->mutable_contents()->add_bytes_contents(text);
  return request;
}

std::string Refusal(const inference::ModelInferRequest& request) {
  absl::Status status = ToCompletionJson(request).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("Parameters go into the request by name and type", "[grpc][unit]") {
  inference::ModelInferRequest request = OneText("hello");
  (*request.mutable_parameters())["max_tokens"].set_int64_param(3);
  (*request.mutable_parameters())["ignore_eos"].set_bool_param(true);
  (*request.mutable_parameters())["stream"].set_bool_param(true);
  absl::StatusOr<std::string> body = ToCompletionJson(request);
  REQUIRE(body.ok());
  CHECK(nlohmann::json::parse(*body) ==
        nlohmann::json::parse(
            R"({"model": "m", "prompt": ["hello"], "max_tokens": 3, "ignore_eos": true})"));
}

TEST_CASE("More parameters than a body over HTTP may have are refused", "[grpc][unit]") {
  inference::ModelInferRequest request = OneText("hello");
  for (int i = 0; i < 1025; ++i) (*request.mutable_parameters())[std::to_string(i)];
  CHECK(Refusal(request).find("at most 1024 parameters, found 1025") != std::string::npos);
}

TEST_CASE("Tensors that are not one text input are refused", "[grpc][unit]") {
  CHECK(Refusal({}).find("text_input") != std::string::npos);
  inference::ModelInferRequest wrong = OneText("a");
  wrong.mutable_inputs(0)->set_datatype("FP32");
  CHECK(Refusal(wrong).find("BYTES") != std::string::npos);
  inference::ModelInferRequest two = OneText("a");
  two.mutable_inputs(0)->set_shape(0, 2);
  CHECK(Refusal(two).find("1 elements") != std::string::npos);
  inference::ModelInferRequest huge = OneText("a");
  huge.mutable_inputs(0)->set_shape(0, int64_t{1} << 62);
  huge.mutable_inputs(0)->add_shape(int64_t{1} << 62);
  Refusal(huge);
  inference::ModelInferRequest none = OneText("a");
  none.mutable_inputs(0)->mutable_contents()->clear_bytes_contents();
  none.mutable_inputs(0)->set_shape(0, 0);
  Refusal(none);
}

TEST_CASE("Raw content is split by its lengths, and never read past its end", "[grpc][unit]") {
  inference::ModelInferRequest request = OneText("a");
  request.mutable_inputs(0)->mutable_contents()->clear_bytes_contents();
  std::string* raw = request.add_raw_input_contents();
  *raw = std::string("\x02\0\0\0hi", 6);
  REQUIRE(ToCompletionJson(request).ok());
  for (const std::string& broken : {std::string("\x03\0\0\0hi", 6), std::string("\x02\0\0", 3),
                                    std::string("\xff\xff\xff\xff", 4)}) {
    *raw = broken;
    CHECK(Refusal(request).find("raw_input_contents[0]") != std::string::npos);
  }
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("twice");
  *raw = std::string("\x02\0\0\0hi", 6);
  CHECK(Refusal(request).find("once") != std::string::npos);
}

}  // namespace
}  // namespace heddle::server
