// Reading of requests: only fields that the route's table declares can be read, and the error for
// any wrong value names its field.
#include "server/request/request_fields.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <type_traits>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/anthropic/messages_fields.h"
#include "server/anthropic/messages_request.h"
#include "server/branches/branch_fields.h"
#include "server/branches/branch_requests.h"
#include "server/cohere/cohere_embed.h"
#include "server/cohere/cohere_fields.h"
#include "server/kserve/infer_fields.h"
#include "server/kserve/infer_request.h"
#include "server/llamacpp/llama_fields.h"
#include "server/llamacpp/llama_request.h"
#include "server/llamacpp/llama_server.h"
#include "server/ollama/ollama_embed.h"
#include "server/ollama/ollama_fields.h"
#include "server/ollama/ollama_models.h"
#include "server/ollama/ollama_request.h"
#include "server/openai/api_fields.h"
#include "server/openai/embeddings.h"
#include "server/openai/request_parts.h"
#include "server/openai/responses_request.h"
#include "server/openai/tokenize.h"
#include "server/tei/tei_fields.h"
#include "server/tei/tei_routes.h"
#include "tests/server/fake_generation.h"
#include "tests/server/openai/api_parser.h"
#include "tests/support/paths.h"

namespace heddle::test {
namespace {

using server::ApiError;
using server::ConversationFields;
using server::EmbeddingTask;
using server::Endpoint;
using server::Field;
using server::FieldType;
using server::Json;
using server::RequestContext;
using server::RequestFields;
namespace fields = server::fields;

template <typename Fields>
concept ReadsStreamAsBool = requires(const Fields& body) {
  body.template Bool<"stream">(false);
};
template <typename Fields>
concept ReadsStreamAsText = requires(const Fields& body) {
  body.template Text<"stream">();
};
template <typename Fields>
concept ReadsStreamAtAll = requires(const Fields& body) {
  body.template Value<"stream">();
};
template <typename Fields, const auto& kMembers>
concept ReadsOptionsAs = requires(const Fields& body) {
  body.template Object<"stream_options", kMembers>();
};

using Chat = RequestFields<fields::kChat>;
using Rerank = RequestFields<fields::kRerank>;
using Tokenize = RequestFields<fields::kTokenize>;

static_assert(ReadsStreamAsBool<Chat>);
static_assert(!ReadsStreamAsText<Chat>, "a field has the type that its table declares");
static_assert(!ReadsStreamAtAll<Rerank>, "a field of another route cannot be read");
static_assert(ReadsOptionsAs<Chat, fields::kStreamOptions>);
static_assert(!ReadsOptionsAs<Chat, fields::kJsonSchema>, "an object has its own members");
static_assert(std::is_convertible_v<Chat, ConversationFields>);
static_assert(std::is_convertible_v<Tokenize, ConversationFields>);
static_assert(!std::is_convertible_v<Rerank, ConversationFields>,
              "what routes share is only called with what it reads");
static_assert(!std::is_constructible_v<Chat, const Json&>, "only what is checked can be read");
static_assert(!std::is_default_constructible_v<Chat>);

struct RouteUnderTest {
  std::string name;
  std::span<const Field> table;
  std::string body;  // that is answered
  std::function<absl::Status(const std::string&, const RequestContext&)> parse;
};

template <EmbeddingTask task>
absl::Status ParseEmbedding(const std::string& body, const RequestContext& context) {
  return server::ParseEmbeddingRequest(task, body, context).status();
}

template <Endpoint endpoint>
absl::Status ParseGeneration(const std::string& body, const RequestContext& context) {
  return server::ParseRequest(endpoint, body, context).status();
}

absl::Status ParseResponses(const std::string& body, const RequestContext& context) {
  server::ResponseStore store;
  server::ConversationStore conversations;
  return server::ParseResponsesRequest(body, context, {&store, &conversations}, "u").status();
}

absl::Status CountResponses(const std::string& body, const RequestContext& context) {
  server::ResponseStore store;
  server::ConversationStore conversations;
  return server::CountResponseTokens(body, context, {&store, &conversations}).status();
}

// Each call has a table of its own, with one tree of two branches.
template <typename Call>
auto OnBranches(Call call) {
  return [call](const std::string& body, const RequestContext& context) -> absl::Status {
    FakeGeneration service;
    server::BranchTable table({}, &service, /*seed=*/1);
    CHECK(table.AddRoot(0, {.id = "br_root", .tokens = {65, 66}, .common = "{}"}, 1).ok());
    CHECK(table.Fork(0, {.from = "br_root", .n = 1, .ids = {"br_child"}}, 1).ok());
    return call(body, context, server::BranchAccess{&table, 0, 1}).status();
  };
}

// Calls `parse` with the context of a model with these classes.
template <typename Parse>
absl::Status WithClasses(std::vector<std::string> labels, const RequestContext& context,
                         const Parse& parse) {
  server::ServedModel model = *context.model;
  engine::PooledOutput output;
  output.labels = std::move(labels);
  model.head = std::make_shared<const engine::PooledHead>(
      output, std::vector<engine::PooledHead::Layer>(), /*hidden=*/2);
  RequestContext of_classes = context;
  of_classes.model = &model;
  return parse(of_classes);
}

absl::Status ParseForClasses(EmbeddingTask task, std::vector<std::string> labels,
                             const std::string& body, const RequestContext& context) {
  return WithClasses(std::move(labels), context, [&](const RequestContext& of_classes) {
    return server::ParseEmbeddingRequest(task, body, of_classes).status();
  });
}

absl::Status ParsePrediction(const std::string& body, const RequestContext& context) {
  return WithClasses({"no", "yes"}, context, [&](const RequestContext& of_classes) {
    return server::ParseTeiPredict(body, of_classes).status();
  });
}

absl::Status ParseClassify(const std::string& body, const RequestContext& context) {
  return ParseForClasses(EmbeddingTask::kClassify, {"no", "yes"}, body, context);
}

template <EmbeddingTask kTask>
absl::Status ParsePairs(const std::string& body, const RequestContext& context) {
  return ParseForClasses(kTask, {"fits"}, body, context);
}

absl::Status ParseCompaction(const std::string& body, const RequestContext& context) {
  server::ResponseStore store;
  server::ConversationStore conversations;
  return server::ParseCompactionRequest(body, context, {&store, &conversations}, "u").status();
}

template <typename Parse>
auto StatusOf(Parse parse) {
  return [parse](const std::string& body, const RequestContext& context) {
    return parse(body, context).status();
  };
}

std::vector<RouteUnderTest> Routes() {
  const std::string turns = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1})";
  return {
      {"completions", fields::kCompletion, R"({"prompt":"x"})",
       ParseGeneration<Endpoint::kCompletion>},
      {"chat", fields::kChat, turns, ParseGeneration<Endpoint::kChat>},
      {"responses", fields::kResponses, R"({"input":"x"})", ParseResponses},
      {"input_tokens", fields::kResponses, R"({"input":"x"})", CountResponses},
      {"compact", fields::kCompact, R"({"input":"x"})", ParseCompaction},
      {"branches", fields::kNewBranches, R"({"prompt":"x"})", OnBranches(server::CreateBranches)},
      {"forks", fields::kNewBranches, R"({"from":"br_root"})", OnBranches(server::CreateBranches)},
      {"continue", fields::kContinueBranch, R"({"append":"x"})",
       OnBranches([](const auto& body, const auto& context, const auto& access) {
         return server::ParseContinuation("br_root", body, context, access);
       })},
      {"join", fields::kJoinBranches, R"({"children":["br_child"]})",
       OnBranches([](const auto& body, const auto& context, const auto& access) {
         return server::JoinBranches("br_root", body, context, access);
       })},
      {"score", fields::kScoreBranch, R"({"continuations":["x"]})",
       OnBranches([](const auto& body, const auto& context, const auto& access) {
         return server::ParseScoring("br_root", body, context, access);
       })},
      {"messages", fields::kMessages, turns, StatusOf(server::ParseMessagesRequest)},
      {"count_tokens", fields::kMessages, turns, StatusOf(server::CountMessageTokens)},
      {"embeddings", fields::kEmbeddings, R"({"input":"x"})",
       ParseEmbedding<EmbeddingTask::kEmbed>},
      {"score", fields::kScore, R"({"text_1":"x","text_2":"y"})",
       ParseEmbedding<EmbeddingTask::kScore>},
      {"rerank", fields::kRerank, R"({"query":"x","documents":["y"]})",
       ParseEmbedding<EmbeddingTask::kRerank>},
      {"classify", fields::kClassify, R"({"input":"x"})", ParseClassify},
      {"score pairs", fields::kScore, R"({"text_1":"x","text_2":"y"})",
       ParsePairs<EmbeddingTask::kScore>},
      {"rerank pairs", fields::kRerank, R"({"query":"x","documents":["y"]})",
       ParsePairs<EmbeddingTask::kRerank>},
      {"infer", fields::kInfer,
       R"({"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["x"]}]})",
       StatusOf(server::ParseInferRequest)},
      {"llama completion", fields::kLlamaCompletion, R"({"prompt":"x"})",
       StatusOf(server::ParseLlamaCompletion)},
      {"infill", fields::kLlamaInfill, R"({"input_prefix":"x"})",
       StatusOf(server::ParseLlamaInfill)},
      {"apply-template", fields::kApplyTemplate, R"({"messages":[{"role":"user","content":"x"}]})",
       StatusOf(server::ApplyTemplate)},
      {"ollama chat", fields::kOllamaChat, R"({"messages":[{"role":"user","content":"x"}]})",
       StatusOf(server::ParseOllamaChat)},
      {"ollama generate", fields::kOllamaGenerate, R"({"prompt":"x"})",
       StatusOf(server::ParseOllamaGenerate)},
      {"tei embed", fields::kTeiEmbed, R"({"inputs":"x"})", StatusOf(server::ParseTeiEmbed)},
      {"tei predict", fields::kTeiPredict, R"({"inputs":"x"})", ParsePrediction},
      {"tei rerank", fields::kTeiRerank, R"({"query":"x","texts":["y"]})",
       StatusOf(server::ParseAnyRerank)},
      {"tei similarity", fields::kTeiSimilarity,
       R"({"inputs":{"source_sentence":"x","sentences":["y"]}})",
       StatusOf(server::ParseTeiSimilarity)},
      {"cohere embed", fields::kCohereEmbed, R"({"texts":["x"]})",
       [](const std::string& body, const RequestContext& context) {
         return server::ParseCohereEmbed(2, body, context).status();
       }},
      {"ollama embed", fields::kOllamaEmbed, R"({"input":"x"})",
       StatusOf(server::ParseOllamaEmbed)},
      {"ollama embeddings", fields::kOllamaEmbeddings, R"({"prompt":"x"})",
       StatusOf(server::ParseOllamaEmbeddings)},
      {"ollama show", fields::kOllamaShow, "{}", StatusOf(server::OllamaShow)},
      {"tokenize", fields::kTokenize, R"({"prompt":"x"})", StatusOf(server::Tokenize)},
      {"tokenize of messages", fields::kTokenize, R"({"messages":[{"role":"user","content":"x"}]})",
       StatusOf(server::Tokenize)},
      {"detokenize", fields::kDetokenize, R"({"tokens":[65]})", StatusOf(server::Detokenize)},
  };
}

// A value of each type that JSON has, and some that stand at a limit of one.
const std::vector<Json>& Values() {
  static const std::vector<Json> values = {
      true,
      0,
      -1,
      7,
      1.5,
      1e300,
      -1e300,
      std::numeric_limits<uint64_t>::max(),
      std::numeric_limits<int64_t>::min(),
      "",
      "text",
      "\xF0\x9F\x98\x80",
      Json::array(),
      Json::array({1, 2}),
      Json::array({"a", nullptr}),
      Json::array({Json::array(), Json::object()}),
      Json::array({{{"type", 5}, {"role", true}, {"content", 1.5}}}),
      Json::object(),
      {{"type", "json_schema"}},
      {{"type", 5}, {"name", true}, {"function", "x"}},
      {{"type", "function"}, {"function", {{"name", 3}}}},
      {{"a", {{"b", {{"c", nullptr}}}}}},
  };
  return values;
}

bool Fits(const Json& value, FieldType type) {
  switch (type) {
    case FieldType::kBoolean:
      return value.is_boolean();
    case FieldType::kInteger:
    case FieldType::kNumber:
      return value.is_number();  // 1e300 is whole, too, but beyond every range
    case FieldType::kString:
      return value.is_string();
    case FieldType::kArray:
      return value.is_array();
    case FieldType::kObject:
      return value.is_object();
    case FieldType::kStringOrArray:
      return value.is_string() || value.is_array();
    case FieldType::kStringOrObject:
      return value.is_string() || value.is_object();
    case FieldType::kArrayOrObject:
      return value.is_array() || value.is_object();
    case FieldType::kSchema:
      return value.is_string() || value.is_object() || value.is_boolean();
    case FieldType::kAny:
      return true;
  }
  return false;
}

// The answer to `route` with `value` in the place of `field`: anything but an exception, and a
// refusal that names the field if the type is wrong.
void CheckAnswer(const RouteUnderTest& route, const Field& field, const Json& value) {
  ApiParser parser;
  const RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  Json body = Json::parse(route.body);
  body[std::string(field.name)] = value;
  INFO(route.name << ": " << body.dump());
  const absl::Status status = route.parse(body.dump(), context);
  if (!status.ok()) CHECK(server::ToApiError(status).http_status < 500);
  if (Fits(value, field.type)) return;
  const ApiError error = server::ToApiError(status);
  CHECK(error.http_status == 400);
  CHECK(error.param == field.name);
  CHECK(error.code == "invalid_type");
}

TEST_CASE("Every field of every route refuses every other type by its own name", "[openai]") {
  for (const RouteUnderTest& route : Routes()) {
    for (const Field& field : route.table) {
      for (const Json& value : Values()) CheckAnswer(route, field, value);
    }
  }
}

// The declarations of objects' members in a table hold, too.
TEST_CASE("Members of objects are checked by their own tables", "[openai]") {
  ApiParser parser;
  struct Case {
    const char* member;
    const char* param;
  };
  for (const Case& c :
       {Case{R"("stream":true,"stream_options":{"include_usage":"x"})",
             "stream_options.include_usage"},
        {R"("response_format":{"type":5})", "response_format.type"},
        {R"("response_format":{"type":"json_schema","json_schema":[]})",
         "response_format.json_schema"},
        {R"("response_format":{"type":"json_schema","json_schema":{"name":1,"schema":true}})",
         "response_format.json_schema.name"},
        {R"("response_format":{"type":"json_schema","json_schema":{"schema":1}})",
         "response_format.json_schema.schema"},
        {R"("structured_outputs":{"json_object":1})", "structured_outputs.json_object"},
        {R"("structured_outputs":{"regex":{}})", "structured_outputs.regex"},
        {R"("structured_outputs":{"whitespace_pattern":[],"json":{}})",
         "structured_outputs.whitespace_pattern"}}) {
    INFO(c.member);
    CHECK(parser.ChatRefused(c.member).param == c.param);
  }
}

TEST_CASE("Texts that are compared are encoded as the request says, or refused", "[openai]") {
  ApiParser parser;
  const RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  for (const auto& [task, body] :
       {std::pair{EmbeddingTask::kScore, R"({"text_1":"q","text_2":"a","add_special_tokens":X})"},
        {EmbeddingTask::kRerank, R"({"query":"q","documents":["a"],"add_special_tokens":X})"}}) {
    const auto with = [&, body = std::string(body)](const std::string& value) {
      return std::regex_replace(body, std::regex("X"), value);
    };
    const auto refused = server::ParseEmbeddingRequest(task, with(R"("x")"), context);
    REQUIRE_FALSE(refused.ok());
    CHECK(server::ToApiError(refused.status()).param == "add_special_tokens");
    const auto bare = server::ParseEmbeddingRequest(task, with("false"), context);
    REQUIRE(bare.ok());
    CHECK(bare->generations.at(1).prompt == Bytes("a"));
    CHECK(server::ParseEmbeddingRequest(task, with("true"), context)->generations.at(1).prompt ==
          std::vector<TokenId>{kBos, 'a'});
  }
}

TEST_CASE("Access to JSON is total", "[openai]") {
  for (const Json& value : Values()) {
    INFO(value.dump());
    CHECK((server::Find(value, "a") != nullptr) == (value.is_object() && value.contains("a")));
    CHECK((server::TextOf(&value) != nullptr) == value.is_string());
    CHECK(server::IntegerOf(value).has_value() == value.is_number_integer());
    CHECK(server::NumberOf(value).has_value() == value.is_number());
  }
  CHECK(server::IntegerOf(std::numeric_limits<uint64_t>::max()) ==
        std::numeric_limits<int64_t>::max());
  CHECK(server::TextOf(nullptr) == nullptr);
}

// The library's own accessors throw if a value has another type. The parsers use only those that
// cannot throw.
TEST_CASE("No other source of the server takes values out of JSON unchecked", "[openai]") {
  const std::regex unchecked(R"(([.>]get<|get_ref<|[.>]at\(|[.>]value\())");
  int files = 0;
  for (const char* folder :
       {"server/answer", "server/anthropic", "server/branches", "server/grpc", "server/http",
        "server/kserve", "server/llamacpp", "server/ollama", "server/openai", "server/request",
        "server/text", "server/toolcalls"}) {
    for (const auto& entry : std::filesystem::directory_iterator(SourceDir() / folder)) {
      const std::string name = entry.path().filename();
      if (!name.ends_with(".cc") || name == "json_input.cc" || name == "fields.cc") continue;
      std::ifstream in(entry.path());
      const std::string text(std::istreambuf_iterator<char>(in), {});
      if (text.find("nlohmann/json.hpp") == std::string::npos) continue;
      std::smatch match;
      INFO(entry.path().string());
      const bool found = std::regex_search(text, match, unchecked);
      INFO((found ? match.str() + match.suffix().str().substr(0, 60) : std::string()));
      CHECK_FALSE(found);
      ++files;
    }
  }
  CHECK(files > 10);
}

}  // namespace
}  // namespace heddle::test
