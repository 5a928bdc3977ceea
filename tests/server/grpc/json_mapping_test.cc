#include "server/grpc/json_mapping.h"

#include "catch2/catch.hpp"
#include "engine/sampling_params.h"
#include "nlohmann/json.hpp"
#include "proto/heddle/v1/inference.pb.h"
#include "server/openai/chat_fields.h"

namespace heddle::server {
namespace {

nlohmann::json Body(const google::protobuf::Message& message, JsonForm form = JsonForm::kPlain) {
  absl::StatusOr<std::string> text = ToRequestJson(message, form);
  REQUIRE(text.ok());
  return nlohmann::json::parse(*text);
}

TEST_CASE("Fields keep their names, and unset ones are left out", "[grpc][unit]") {
  v1::GenerateRequest request;
  request.set_prompt("a");
  request.set_max_tokens(0);
  (*request.mutable_logit_bias())["7"] = -1.5;
  CHECK(Body(request) ==
        nlohmann::json::parse(R"({"prompt": "a", "max_tokens": 0, "logit_bias": {"7": -1.5}})"));
}

TEST_CASE("Both requests have each number that sampling takes, in its type", "[grpc][unit]") {
  for (const auto* message : {v1::GenerateRequest::descriptor(), v1::ChatRequest::descriptor()}) {
    for (const engine::SamplingNumber& number : engine::kSamplingNumbers) {
      INFO(message->name() << "." << number.name);
      const auto* field = message->FindFieldByName(std::string(number.name));
      REQUIRE(field != nullptr);
      CHECK(field->has_presence());
      using Field = google::protobuf::FieldDescriptor;
      CHECK(field->type() == (number.is_integer() ? Field::TYPE_INT32 : Field::TYPE_DOUBLE));
    }
  }
}

TEST_CASE("Sequence breakers are a list of texts, and missing where there are none",
          "[grpc][unit]") {
  v1::ChatRequest request;
  request.set_dry_multiplier(0.5);
  CHECK(Body(request) == nlohmann::json::parse(R"({"dry_multiplier": 0.5})"));
  request.add_dry_sequence_breakers("\n");
  CHECK(Body(request)["dry_sequence_breakers"] == nlohmann::json::parse(R"(["\n"])"));
}

TEST_CASE("Limits of drafts and predictions are objects, as over HTTP", "[grpc][unit]") {
  v1::ChatRequest chat;
  chat.mutable_speculative()->set_max(0);
  chat.mutable_speculative()->set_min_p(0.5);
  chat.mutable_prediction()->set_type("content");
  chat.mutable_prediction()->set_content("abc");
  CHECK(Body(chat) == nlohmann::json::parse(R"({"speculative": {"max": 0, "min_p": 0.5},
                                               "prediction": {"type": "content",
                                                              "content": "abc"}})"));
  v1::GenerateRequest generate;
  generate.mutable_speculative()->set_off(true);
  CHECK(Body(generate) == nlohmann::json::parse(R"({"speculative": {"off": true}})"));
  v1::ChatResponse response;
  REQUIRE(server::FromResponseJson(
              R"({"usage": {"completion_tokens_details": {"accepted_prediction_tokens": 4,
                                                          "rejected_prediction_tokens": 2}}})",
              &response)
              .ok());
  CHECK(response.usage().completion_tokens_details().accepted_prediction_tokens() == 4);
  CHECK(response.usage().completion_tokens_details().rejected_prediction_tokens() == 2);
}

// Every field of the table is a field of the message, and of no other type.
void CheckMembers(const google::protobuf::Descriptor* message, std::span<const Field> table) {
  using Proto = google::protobuf::FieldDescriptor;
  for (const Field& field : table) {
    INFO(message->full_name() << "." << field.name);
    const Proto* member = message->FindFieldByName(std::string(field.name));
    REQUIRE(member != nullptr);
    if (member->type() == Proto::TYPE_MESSAGE) {
      if (!field.members.empty()) CheckMembers(member->message_type(), field.members);
    } else if (field.type == FieldType::kInteger) {
      CHECK(member->type() == Proto::TYPE_INT32);
    } else if (field.type == FieldType::kNumber) {
      CHECK(member->type() == Proto::TYPE_DOUBLE);
    } else {
      CHECK(member->type() == Proto::TYPE_STRING);
    }
  }
  CHECK(message->field_count() == static_cast<int>(table.size()));
}

TEST_CASE("Branches and searches have all members that they have over HTTP", "[grpc][unit]") {
  CheckMembers(v1::Parallel::descriptor(), fields::kParallel);
  CheckMembers(v1::Search::descriptor(), fields::kSearch);
  for (const auto* message : {v1::GenerateRequest::descriptor(), v1::ChatRequest::descriptor()}) {
    INFO(message->name());
    CHECK(message->FindFieldByName("parallel")->message_type() == v1::Parallel::descriptor());
    CHECK(message->FindFieldByName("search")->message_type() == v1::Search::descriptor());
    for (const char* name : {"use_beam_search", "beam_width", "length_penalty"}) {
      INFO(name);
      REQUIRE(message->FindFieldByName(name) != nullptr);
      CHECK(message->FindFieldByName(name)->has_presence());
    }
  }
}

TEST_CASE("Limits of branches are what the client gave, and missing where it gave none",
          "[grpc][unit]") {
  v1::GenerateRequest request;
  v1::Parallel* parallel = request.mutable_parallel();
  CHECK(Body(request) == nlohmann::json::parse(R"({"parallel": {}})"));
  parallel->set_format("custom");
  parallel->set_max_depth(0);
  parallel->mutable_on_slow()->set_cut_after_s(0.5);
  parallel->mutable_custom()->set_fork_at("</Goal>");
  parallel->mutable_custom()->set_cut_end("");
  request.mutable_search()->mutable_prune()->set_tokens(8);
  CHECK(Body(request) == nlohmann::json::parse(R"({
      "parallel": {"format": "custom", "max_depth": 0, "on_slow": {"cut_after_s": 0.5},
                   "custom": {"fork_at": "</Goal>", "cut_end": ""}},
      "search": {"prune": {"tokens": 8}}})"));
  v1::GenerateResponse response;
  REQUIRE(server::FromResponseJson(
              R"({"choices": [{"index": 0, "branch": "0.2", "text": "a"}],
                  "usage": {"completion_tokens_details": {
                    "critical_path_tokens": 7, "branches": 2, "samples": 4, "finished_samples": 3,
                    "pruned_samples": 1, "votes": 2, "saved_tokens": 5000000000, "reward": -1.5}}})",
              &response)
              .ok());
  CHECK(response.choices(0).branch() == "0.2");
  const v1::CompletionTokensDetails& details = response.usage().completion_tokens_details();
  CHECK(details.critical_path_tokens() == 7);
  CHECK(details.branches() == 2);
  CHECK(details.samples() == 4);
  CHECK(details.finished_samples() == 3);
  CHECK(details.pruned_samples() == 1);
  CHECK(details.votes() == 2);
  CHECK(details.saved_tokens() == 5000000000);
  CHECK(details.reward() == -1.5);
}

TEST_CASE("A seed of 64 bits stays a number", "[grpc][unit]") {
  v1::GenerateRequest request;
  request.set_seed(18446744073709551615u);
  CHECK(Body(request)["seed"] == 18446744073709551615u);
}

TEST_CASE("A scale of 0 is not the missing one, which is 1", "[grpc][unit]") {
  v1::ChatRequest request;
  request.add_lora()->set_id("sql");
  v1::LoraUse* off = request.add_lora();
  off->set_id("law");
  off->set_scale(0);
  CHECK(Body(request)["lora"] ==
        nlohmann::json::parse(R"([{"id": "sql"}, {"id": "law", "scale": 0}])"));
}

TEST_CASE("Token ids are a prompt", "[grpc][unit]") {
  v1::GenerateRequest request;
  request.mutable_prompt_token_ids()->add_ids(5);
  request.mutable_prompt_token_ids()->add_ids(0);
  CHECK(Body(request) == nlohmann::json::parse(R"({"prompt": [5, 0]})"));
}

TEST_CASE("A stream asks for its usage, whatever extra says", "[grpc][unit]") {
  v1::GenerateRequest request;
  auto& extra = *request.mutable_extra()->mutable_fields();
  extra["stream"].set_bool_value(false);
  extra["typical_p"].set_number_value(0.5);
  CHECK(Body(request, JsonForm::kStreaming) ==
        nlohmann::json::parse(
            R"({"typical_p": 0.5, "stream": true, "stream_options": {"include_usage": true}})"));
}

TEST_CASE("JSON texts become JSON, at any depth and in the order given", "[grpc][unit]") {
  v1::ChatRequest request;
  v1::Function* function = request.add_tools()->mutable_function();
  function->set_name("f");
  function->set_parameters_json(R"({"b": 1, "a": [2]})");
  absl::StatusOr<std::string> text = ToRequestJson(request, JsonForm::kPlain);
  REQUIRE(text.ok());
  CHECK(*text == R"({"tools":[{"function":{"name":"f","parameters":{"b":1,"a":[2]}}}]})");
}

TEST_CASE("A text that is not JSON is named", "[grpc][unit]") {
  v1::ChatRequest request;
  request.set_response_format_json("{");
  absl::Status status = ToRequestJson(request, JsonForm::kPlain).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()) == "response_format_json is not JSON");
}

// Trees are printed by recursion, and objects are searched from their first member on.
TEST_CASE("What HTTP refuses as too deep or too large is refused here, too", "[grpc][unit]") {
  v1::ChatRequest deep;
  deep.add_tools()->mutable_function()->set_parameters_json(std::string(2'000'000, '[') +
                                                            std::string(2'000'000, ']'));
  absl::Status status = ToRequestJson(deep, JsonForm::kPlain).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()).find("parameters_json: ") == 0);
  v1::GenerateRequest wide;
  for (int i = 0; i < 1025; ++i) (*wide.mutable_logit_bias())[std::to_string(i)] = 1;
  status = ToRequestJson(wide, JsonForm::kPlain).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()).find("more than 1024 members") != std::string::npos);
}

TEST_CASE("An answer fills what the message has, nulls and unknown members or not",
          "[grpc][unit]") {
  v1::GenerateResponse response;
  REQUIRE(FromResponseJson(R"({"id": "x", "object": "text_completion", "created": 1700000000,
      "choices": [{"index": 1, "text": "hi", "finish_reason": null, "logprobs":
      {"tokens": ["h"], "token_logprobs": [null], "top_logprobs": [{"h": -0.5}],
       "text_offset": [3]}}], "usage": null})",
                           &response)
              .ok());
  CHECK(response.id() == "x");
  CHECK(response.created() == 1700000000);
  CHECK(response.choices(0).text() == "hi");
  CHECK(response.choices(0).finish_reason().empty());
  CHECK(response.choices(0).logprobs().token_logprobs(0).has_null_value());
  CHECK(response.choices(0).logprobs().text_offset(0) == 3);
  CHECK_FALSE(response.has_usage());
}

}  // namespace
}  // namespace heddle::server
