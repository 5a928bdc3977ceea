// From the JSON of a request to GenerationRequests: what is accepted, what is refused, and how the
// refusal names its field. Ranges and defaults are those of OpenAI's API reference.
#include "server/openai/openai_request.h"

#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::ApiError;
using server::ApiRequest;
using server::Endpoint;
using Parser = ApiParser;

TEST_CASE("A suffix puts the prompt between the tokens of filling in", "[openai]") {
  Parser parser;
  ApiRequest request = parser.Completion(R"({"prompt":["a","bc"],"suffix":"z"})");
  CHECK(request.generations[0].prompt == std::vector<TokenId>{kBos, 'a', kTurn, 'z', kNull});
  CHECK(request.generations[1].prompt == std::vector<TokenId>{kBos, 'b', 'c', kTurn, 'z', kNull});
  CHECK(parser.Refused(Endpoint::kCompletion, R"({"prompt":"a","suffix":"b","echo":true})").param ==
        "suffix");
  parser.codec.fills = false;
  CHECK(parser.Refused(Endpoint::kCompletion, R"({"prompt":"a","suffix":"b"})").code ==
        "unsupported_parameter");
}

TEST_CASE("best_of draws more branches than are returned, and asks for their logprobs",
          "[openai]") {
  Parser parser;
  ApiRequest request = parser.Completion(R"({"prompt":"a","n":2,"best_of":5})");
  CHECK(request.n == 2);
  CHECK(request.num_branches() == 5);
  CHECK(request.generations[0].num_branches == 5);
  CHECK(request.generations[0].sampling.num_logprobs == 0);
  CHECK(parser.Completion(R"({"prompt":"a","n":2})").generations[0].sampling.num_logprobs == -1);
  for (const char* body :
       {R"({"prompt":"a","n":3,"best_of":2})", R"({"prompt":"a","best_of":2,"stream":true})"}) {
    CHECK(parser.Refused(Endpoint::kCompletion, body).param == "best_of");
  }
}

TEST_CASE("Choices may differ in how they are drawn", "[openai]") {
  Parser parser;
  const ApiRequest request = parser.Completion(
      R"({"prompt":"a","n":3,"temperature":0.5,"top_k":7,"seed":5,
          "branches":[{"temperature":0},{"seed":99,"top_p":0.25},{"temperature":null}]})");
  const std::vector<engine::SamplingParams>& each = request.generations[0].sampling_of;
  REQUIRE(each.size() == 3);
  CHECK(each[0].temperature == 0);
  CHECK(each[0].seed == 5);
  CHECK(each[0].top_k == 7);
  CHECK(each[1].temperature == 0.5f);
  CHECK(each[1].top_p == 0.25f);
  CHECK(each[1].seed == 99);
  CHECK(each[2].temperature == 0.5f);
  CHECK(each[2].seed == 7);
  CHECK(parser.Completion(R"({"prompt":"a","n":3})").generations[0].sampling_of.empty());
  const std::pair<const char*, const char*> refused[] = {
      {R"("branches":[{}])", "branches"},
      {R"("branches":[{},{},{}])", "branches"},
      {R"("branches":[{},3])", "branches[1]"},
      {R"("branches":[{},{"temperature":-1}])", "branches[1].temperature"},
      {R"("branches":[{},{"stop":"a"}])", "branches[1].stop"},
      {R"("branches":[{},{"typical_p":0}])", "typical_p"},
      {R"("branches":{})", "branches"},
      {R"("branches":[{},{}],"best_of":3)", "branches"},
      {R"("branches":[{},{}],"use_beam_search":true)", "branches"},
  };
  for (const auto& [members, param] : refused) {
    INFO(members);
    CHECK(
        parser.Refused(Endpoint::kCompletion, base::StrCat(R"({"prompt":"a","n":2,)", members, "}"))
            .param == param);
  }
}

TEST_CASE("Bad words become token sequences, with a space before and without", "[openai]") {
  Parser parser;
  auto words = parser.Chat(R"("bad_words":["no"," maybe"])").generations[0].sampling.bad_words;
  // In bytes the spaced form is longer, so the plain one covers it.
  CHECK(words == std::vector<std::vector<TokenId>>{Bytes("no"), Bytes("maybe")});
  for (const char* value : {R"([""])", R"(["  "])", "[5]", R"("no")"}) {
    CHECK(parser.ChatRefused(base::StrCat(R"("bad_words":)", value)).param == "bad_words");
  }
}

TEST_CASE("A prompt may be a string, strings, token ids, or arrays of them", "[openai]") {
  Parser parser;
  CHECK(parser.PromptText(parser.Completion(R"({"prompt":"ab"})")) == "<s>ab");
  ApiRequest strings = parser.Completion(R"({"prompt":["a","bc"]})");
  REQUIRE(strings.generations.size() == 2);
  CHECK(parser.PromptText(strings, 1) == "<s>bc");
  ApiRequest ids = parser.Completion(R"({"prompt":[97,98]})");
  REQUIRE(ids.generations.size() == 1);
  CHECK(parser.PromptText(ids) == "ab");  // ids are taken as they are: no begin token
  ApiRequest arrays = parser.Completion(R"({"prompt":[[97],[98,99]]})");
  REQUIRE(arrays.generations.size() == 2);
  CHECK(parser.PromptText(arrays, 1) == "bc");
  CHECK(parser.PromptText(parser.Completion(R"({"prompt":"ab","add_special_tokens":false})")) ==
        "ab");
}

TEST_CASE("Prompts that are missing, empty or out of range are refused by name", "[openai]") {
  Parser parser;
  auto refused = [&](const std::string& body) {
    return parser.Refused(Endpoint::kCompletion, body);
  };
  CHECK(refused("{}").param == "prompt");
  CHECK(refused(R"({"prompt":[]})").param == "prompt");
  CHECK(refused(R"({"prompt":3})").code == "invalid_type");
  CHECK(refused(R"({"prompt":[97,260]})").param == "prompt");
  CHECK(refused(R"({"prompt":[97,-1]})").param == "prompt");
  CHECK(refused(R"({"prompt":[18446744073709551713]})").param == "prompt");
  CHECK(refused(R"({"prompt":["a",3]})").param == "prompt[1]");
  CHECK(refused(R"({"prompt":[[97],["a"]]})").param == "prompt[1]");
  CHECK(refused(R"({"prompt":["a",[]]})").param == "prompt[1]");
}

TEST_CASE("Sampling parameters reach the engine", "[openai]") {
  Parser parser;
  ApiRequest request = parser.Chat(
      R"("temperature":0.5,"top_p":0.25,"top_k":7,"min_p":0.125,"typical_p":0.375,"seed":-3,"n":3,)"
      R"("presence_penalty":-1.5,"frequency_penalty":1.5,"repetition_penalty":1.25,)"
      R"("logit_bias":{"97":-100,"98":2.5},"max_tokens":9,"stop_token_ids":[100],"min_tokens":4)");
  const server::GenerationRequest& generation = request.generations.at(0);
  const engine::SamplingParams& sampling = generation.sampling;
  CHECK(sampling.temperature == 0.5f);
  CHECK(sampling.top_p == 0.25f);
  CHECK(sampling.top_k == 7);
  CHECK(sampling.min_p == 0.125f);
  CHECK(sampling.typical_p == 0.375f);
  CHECK(sampling.seed == static_cast<uint64_t>(-3));
  CHECK(sampling.presence_penalty == -1.5f);
  CHECK(sampling.frequency_penalty == 1.5f);
  CHECK(sampling.repetition_penalty == 1.25f);
  CHECK(sampling.logit_bias == std::vector<std::pair<TokenId, float>>{{97, -100.0f}, {98, 2.5f}});
  CHECK(sampling.min_tokens == 4);
  CHECK(sampling.min_tokens_banned == std::vector<TokenId>{kEos, 100});
  CHECK(generation.stop_tokens == std::vector<TokenId>{kEos, 100});
  CHECK(generation.num_branches == 3);
  CHECK(generation.max_tokens == 9);
}

TEST_CASE("What a request leaves out, or sets to null, comes from the model", "[openai]") {
  Parser parser;
  parser.model.defaults.temperature = 0.7f;
  parser.model.defaults.top_k = 20;
  for (const char* members :
       {"", R"("temperature":null,"top_k":null,"seed":null,"stop":null,"n":null,"tools":null,)"
            R"("logit_bias":null,"stream":null,"stream_options":null,"max_tokens":null,)"
            R"("response_format":null,"logprobs":null,"top_logprobs":null,"tool_choice":null,)"
            R"("user":null,"model":null)"}) {
    ApiRequest request = parser.Chat(members);
    CHECK(request.generations.at(0).sampling.temperature == 0.7f);
    CHECK(request.generations.at(0).sampling.top_k == 20);
    CHECK(request.generations.at(0).sampling.seed == kRandomSeed);
    CHECK(request.generations.at(0).stop_tokens == std::vector<TokenId>{kEos});
    CHECK(request.n == 1);
    CHECK_FALSE(request.stream);
    CHECK_FALSE(request.logprobs);
  }
}

TEST_CASE("Unknown fields are ignored", "[openai]") {
  Parser parser;
  parser.Chat(R"("store":true,"metadata":{"a":"b"},"service_tier":"auto","from_the_future":[1])");
}

TEST_CASE("Known fields that cannot be honoured are refused, their harmless values are not",
          "[openai]") {
  Parser parser;
  CHECK(parser.ChatRefused(R"("functions":[{"name":"f"}])").code == "unsupported_parameter");
  CHECK(parser.ChatRefused(R"("tool_choice":"required")").param == "tool_choice");
  CHECK(parser.ChatRefused(R"("tool_choice":{"type":"function","function":{"name":"f"}})").param ==
        "tool_choice");
  parser.Chat(R"("response_format":{"type":"text"},"modalities":["text"],"tool_choice":"auto")");
  parser.Completion(R"({"prompt":"a","suffix":"","best_of":1})");
}

TEST_CASE("Wrong types and values out of range name their field", "[openai]") {
  Parser parser;
  struct Case {
    const char* members;
    const char* param;
    const char* code;
  };
  const Case cases[] = {
      {R"("temperature":"hot")", "temperature", "invalid_type"},
      {R"("temperature":-0.1)", "temperature", "invalid_value"},
      {R"("temperature":2.01)", "temperature", "invalid_value"},
      {R"("top_p":1.5)", "top_p", "invalid_value"},
      {R"("top_k":-2)", "top_k", "invalid_value"},
      {R"("top_k":1.5)", "top_k", "invalid_type"},
      {R"("min_p":-1)", "min_p", "invalid_value"},
      {R"("typical_p":0)", "typical_p", "invalid_value"},
      {R"("typical_p":1.1)", "typical_p", "invalid_value"},
      {R"("n":0)", "n", "invalid_value"},
      {R"("n":129)", "n", "invalid_value"},
      {R"("max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("max_tokens":true)", "max_tokens", "invalid_type"},
      {R"("max_completion_tokens":-5)", "max_completion_tokens", "invalid_value"},
      {R"("presence_penalty":3)", "presence_penalty", "invalid_value"},
      {R"("frequency_penalty":-3)", "frequency_penalty", "invalid_value"},
      {R"("repetition_penalty":0)", "repetition_penalty", "invalid_value"},
      {R"("seed":1e30)", "seed", "invalid_value"},
      {R"("stop":3)", "stop", "invalid_type"},
      {R"("stop":["a",1])", "stop", "invalid_type"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "invalid_value"},
      {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens", "invalid_value"},
      {R"("stop_token_ids":[260])", "stop_token_ids", "invalid_value"},
      {R"("logit_bias":{"x":1})", "logit_bias.x", "invalid_value"},
      {R"("logit_bias":{"97":101})", "logit_bias.97", "invalid_value"},
      {R"("logit_bias":[1])", "logit_bias", "invalid_type"},
      {R"("top_logprobs":21,"logprobs":true)", "top_logprobs", "invalid_value"},
      {R"("top_logprobs":2)", "top_logprobs", "invalid_value"},
      {R"("logprobs":1)", "logprobs", "invalid_type"},
      {R"("stream":1)", "stream", "invalid_type"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
       "invalid_type"},
      {R"("model":7)", "model", "invalid_type"},
      {R"("tools":[{"type":"web"}])", "tools[0].type", "invalid_value"},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "invalid_type"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name",
       "missing_required_parameter"},
      {R"("chat_template_kwargs":"x")", "chat_template_kwargs", "invalid_type"},
  };
  for (const Case& c : cases) {
    INFO(c.members);
    ApiError error = parser.ChatRefused(c.members);
    CHECK(error.http_status == 400);
    CHECK(error.type == "invalid_request_error");
    CHECK(error.param == c.param);
    CHECK(error.code == c.code);
  }
}

TEST_CASE("What is refused is shown as it came, and limits with all their digits", "[openai]") {
  Parser parser;
  CHECK(parser.ChatRefused(R"("max_tokens":0)").message ==
        "'max_tokens' must be at least 1, or -1 for the rest of the context, found 0");
  CHECK(parser.ChatRefused(R"("seed":1e30)").message ==
        "'seed' must be from -9223372036854775808 to 18446744073709551615, found 1e+30");
  CHECK(parser.ChatRefused(R"("temperature":2.5)").message ==
        "'temperature' must be from 0 to 2, found 2.5");
  CHECK(parser.ChatRefused(R"("messages":[])").message ==
        "'messages' must have at least 1 entry, found 0");
  CHECK(parser.ChatRefused(R"("response_format":{"type":"xml"})").message ==
        "'response_format.type' must be 'text', 'json_object' or 'json_schema', found \"xml\"");
  CHECK(parser.ChatRefused(R"("logit_bias":{"97":[1]})").message ==
        "'logit_bias.97' must be a number from -100 to 100, found [1]");
}

TEST_CASE("Messages take parts, names, developer turns and calls with no content", "[openai]") {
  Parser parser;
  parser.model.max_context = 1000;
  auto chat = [&](const std::string& messages) {
    auto request = parser.Parse(Endpoint::kChat, base::StrCat(R"({"messages":)", messages, "}"));
    INFO(request.status());
    REQUIRE(request.ok());
    return parser.PromptText(*request);
  };
  CHECK(chat(R"([{"role":"developer","content":"be kind"},)"
             R"({"role":"user","name":"ann","content":[{"type":"text","text":"a"},)"
             R"({"type":"text","text":"b"}]}])") ==
        "<s><|turn|>system\nbe kind<|turn|>user\na\nb<|turn|>assistant\n");
  // Arguments come to the template as an object, so that it can print them.
  CHECK(chat(R"([{"role":"user","content":"w?"},{"role":"assistant","content":null,)"
             R"("tool_calls":[{"id":"c1","type":"function","function":)"
             R"({"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]},)"
             R"({"role":"tool","tool_call_id":"c1","content":"sunny"}])") ==
        "<s><|turn|>user\nw?<|turn|>assistant\n"
        R"([{"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}])"
        "<|turn|>tool\nsunny<|turn|>assistant\n");
  CHECK(chat(R"([{"role":"assistant","content":"x","tool_calls":[]}])") ==
        "<s><|turn|>assistant\nx<|turn|>assistant\n");
}

TEST_CASE("Bad messages name their place", "[openai]") {
  Parser parser;
  struct Case {
    const char* messages;
    const char* param;
  };
  const Case cases[] = {
      {"[]", "messages"},
      {"\"hi\"", "messages"},
      {"[3]", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"king","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url"}]}])",
       "messages[1].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":"a","name":1}])", "messages[0].name"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":[{"function":{}}]}])",
       "messages[0].tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"id":5,"function":{"name":"f"}}]}])",
       "messages[0].tool_calls[0].id"},
      {R"([{"role":"tool","content":"a","tool_call_id":7}])", "messages[0].tool_call_id"},
      {R"([{"role":"user","content":"refuse me"}])", "messages"},
  };
  for (const Case& c : cases) {
    INFO(c.messages);
    ApiError error =
        parser.Refused(Endpoint::kChat, base::StrCat(R"({"messages":)", c.messages, "}"));
    CHECK(error.http_status == 400);
    CHECK(error.param == c.param);
  }
  CHECK(parser.Refused(Endpoint::kChat, "{}").param == "messages");
  const auto tool = [](const std::string& function) {
    return R"("tools":[{"type":"function","function":)" + function + "}]";
  };
  CHECK(parser.ChatRefused(tool(R"({"name":""})")).param == "tools[0].function.name");
  CHECK(parser.ChatRefused(tool(R"({"name":"f","description":1})")).param ==
        "tools[0].function.description");
  CHECK(parser.ChatRefused(tool(R"({"name":"f","strict":1})")).param == "tools[0].function.strict");
  parser.codec.has_template = false;
  CHECK(parser.ChatRefused("").code == "no_chat_template");
}

TEST_CASE("Tools and template arguments reach the template in their own order", "[openai]") {
  Parser parser;
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";
  CHECK(parser.PromptText(parser.Chat(R"("tools":)" + tools)) ==
        "<s><|turn|>user\nhi<|turn|>tools\n" + tools + "<|turn|>assistant\n");
  CHECK(parser.PromptText(parser.Chat(R"("tool_choice":"none","tools":)" + tools)) ==
        "<s><|turn|>user\nhi<|turn|>assistant\n");
  CHECK(parser.PromptText(parser.Chat(
            R"("chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low")")) ==
        "<s><|turn|>user\nhi<|turn|>kwargs\n"
        R"({"enable_thinking":false,"reasoning_effort":"low"})"
        "<|turn|>assistant\n");
  CHECK(parser.PromptText(parser.Chat(R"("add_generation_prompt":false)")) ==
        "<s><|turn|>user\nhi");
  parser.codec.has_tools = false;
  CHECK(parser.ChatRefused(R"("tools":)" + tools).param == "tools");
  parser.Chat(R"("tools":[])");
}

TEST_CASE("max_tokens: the rest of the context, sixteen, what is asked, or what fits", "[openai]") {
  Parser parser;  // context 100; ChatBody's prompt has 1+1+5+2+1+10 = 20 tokens
  CHECK(parser.Chat("").generations[0].max_tokens == 80);
  CHECK(parser.Completion(R"({"prompt":"a"})").generations[0].max_tokens == 16);
  CHECK(parser.Chat(R"("max_tokens":5,"max_completion_tokens":7)").generations[0].max_tokens == 7);
  ApiRequest clamped = parser.Chat(R"("max_tokens":1000)");
  CHECK(clamped.generations[0].max_tokens == 80);
  CHECK(clamped.warning.find("1000") != std::string::npos);
  CHECK(parser.Chat(R"("max_tokens":80)").warning.empty());
  CHECK(
      parser.Completion(R"({"prompt":"a","max_tokens":0,"echo":true})").generations[0].max_tokens ==
      0);
}

TEST_CASE("Only a prompt that does not fit is too long", "[openai]") {
  Parser parser;
  auto body = [](size_t bytes) {
    return base::StrCat(R"({"prompt":")", std::string(bytes, 'a'), R"("})");
  };
  CHECK(parser.Completion(body(98)).generations[0].max_tokens == 1);  // with the begin token 99
  ApiError error = parser.Refused(Endpoint::kCompletion, body(99));
  CHECK(error.http_status == 400);
  CHECK(error.code == "context_length_exceeded");
  CHECK(error.param == "prompt");
  // It may be less than the model's own if memory is short.
  CHECK(error.message.find("the context of this server holds 100") != std::string::npos);
}

TEST_CASE("An unknown model is 404 and says what there is; an alias is known", "[openai]") {
  Parser parser;
  parser.model.aliases = {"other-name"};
  ApiError error = parser.ChatRefused(R"("model":"gpt-9")");
  CHECK(error.http_status == 404);
  CHECK(error.code == "model_not_found");
  CHECK(error.param == "model");
  CHECK(error.message.find("test-model") != std::string::npos);
  parser.Chat(R"("model":"other-name")");
}

TEST_CASE("JSON that is broken, deep, wide or not UTF-8 is refused with its place", "[openai]") {
  Parser parser;
  auto message = [&](const std::string& body) {
    ApiError error = parser.Refused(Endpoint::kCompletion, body);
    CHECK(error.http_status == 400);
    CHECK(error.code == "invalid_json");
    return error.message;
  };
  CHECK(message("{\"prompt\":\n  oops}").find("line 2, column 3") != std::string::npos);
  CHECK(message("[1]").find("an array") != std::string::npos);
  CHECK(message("{\"prompt\":\"\xff\"}").find("line 1, column 12") != std::string::npos);
  CHECK(message(R"({"temperature":1e999})").find("not valid JSON") != std::string::npos);
  CHECK(message(R"({"a":)" + std::string(100000, '[')).find("64 levels") != std::string::npos);
  std::string wide = "{";
  for (int i = 0; i < 2000; ++i) wide += base::StrCat("\"", i, "\":0,");
  CHECK(message(wide).find("1024 members") != std::string::npos);
}

TEST_CASE("n times prompts is bounded; seeds of prompts are their own unless one is given",
          "[openai]") {
  Parser parser;
  json body = {{"prompt", std::vector<std::string>(5, "a")}, {"n", 103}};
  CHECK(parser.Refused(Endpoint::kCompletion, body.dump()).param == "prompt");
  ApiRequest random = parser.Completion(R"({"prompt":["a","a"],"n":2})");
  CHECK(random.generations[0].sampling.seed + 1 < random.generations[1].sampling.seed);
  ApiRequest given = parser.Completion(R"({"prompt":["a","a"],"seed":5})");
  CHECK(given.generations[0].sampling.seed == 5);
  CHECK(given.generations[1].sampling.seed == 5);
}

TEST_CASE("Logprobs ask for scores; echo for the prompt's as well", "[openai]") {
  Parser parser;
  ApiRequest chat = parser.Chat(R"("logprobs":true)");
  CHECK(chat.generations[0].sampling.num_logprobs == 0);
  CHECK(parser.Chat(R"("logprobs":true,"top_logprobs":5)").generations[0].sampling.num_logprobs ==
        5);
  ApiRequest legacy = parser.Completion(R"({"prompt":"a","logprobs":3})");
  CHECK(legacy.generations[0].sampling.num_logprobs == 3);
  CHECK(legacy.generations[0].prompt_logprobs == -1);
  CHECK(parser.Completion(R"({"prompt":"a","logprobs":3,"echo":true})")
            .generations[0]
            .prompt_logprobs == 3);
  CHECK(parser.Chat(R"("ignore_eos":true)").generations[0].stop_tokens.empty());
  CHECK(parser.Chat(R"("top_p":0)").generations[0].sampling.top_k == 1);
}

}  // namespace
}  // namespace heddle::test
