// Fields of requests: exact ranges, what a strict server refuses, and older or newer forms of
// tools.
#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "server/anthropic/messages_request.h"
#include "server/openai/embeddings.h"
#include "server/openai/responses_request.h"
#include "server/openai/tokenize.h"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

using server::ApiError;
using server::ApiRequest;
using server::Endpoint;
using Parser = ApiParser;

TEST_CASE("What other servers' fields would change is not passed over", "[openai]") {
  Parser parser;
  for (const std::string field : {"stop_regex", "regex", "ebnf"}) {
    const std::string body = R"({"prompt":"x",")" + field + R"(":true})";
    CHECK(parser.Refused(Endpoint::kCompletion, body).param == field);
    CHECK(parser.ChatRefused("\"" + field + "\":true").code == "unsupported_parameter");
  }
  parser.Completion(R"({"prompt":"x","use_beam_search":false,"regex":null})");
}

TEST_CASE("A beam search has a width, and does not go with what it cannot honour", "[openai]") {
  Parser parser;
  CHECK(parser.Completion(R"({"prompt":"x","use_beam_search":true,"n":2})").beam_width == 2);
  const ApiRequest wide =
      parser.Completion(R"({"prompt":"x","use_beam_search":true,"n":2,"best_of":5})");
  CHECK(wide.beam_width == 5);
  CHECK(wide.best_of == 2);
  CHECK(parser.Chat(R"("use_beam_search":true,"beam_width":4,"length_penalty":0)").beam_width == 4);
  CHECK(parser.ChatRefused(R"("beam_width":4)").param == "beam_width");
  CHECK(parser.ChatRefused(R"("use_beam_search":true,"beam_width":1,"n":2)").param == "n");
  CHECK(parser.ChatRefused(R"("use_beam_search":true,"beam_width":100)").param == "beam_width");
  CHECK(parser.Chat(R"("use_beam_search":true,"stream":true)").stream);
  for (const char* more : {R"("keep":true)", R"("prompt_logprobs":1)",
                           R"("response_format":{"type":"json_object"})"}) {
    CHECK(parser.ChatRefused(std::string(R"("use_beam_search":true,)") + more).param ==
          "use_beam_search");
  }
}

// vLLM's, SGLang's, llama.cpp's and Mistral's own names, with the values at which they do nothing.
TEST_CASE("What would change the answer on other servers is refused unless it changes nothing",
          "[openai]") {
  Parser parser;
  struct Case {
    const char* name;
    const char* value;
    const char* harmless;
  };
  for (const Case& field : {Case{"allowed_token_ids", "[1]", "null"},
                            {"chat_template", R"("{{ x }}")", "null"},
                            {"n_predict", "8", "null"},
                            {"random_seed", "3", "null"},
                            {"repeat_penalty", "1.1", "1.0"},
                            {"input", R"("x")", "null"},
                            {"instructions", R"("x")", "null"},
                            {"max_output_tokens", "5", "null"},
                            {"mirostat", "2", "0"}}) {
    INFO(field.name);
    const std::string name = base::StrCat("\"", field.name, "\":");
    const ApiError error = parser.ChatRefused(name + field.value);
    CHECK(error.param == field.name);
    CHECK(error.code == "unsupported_parameter");
    parser.Chat(name + field.harmless);
  }
}

TEST_CASE("A salt counts in every form of conversation", "[openai]") {
  Parser parser;
  const server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  server::ResponseStore store;
  server::ConversationStore conversations;
  const uint64_t space = parser.Chat(R"("cache_salt":"a")").generations[0].cache_space;
  CHECK(space != 0);
  auto message = server::ParseMessagesRequest(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}],"cache_salt":"a"})", context);
  REQUIRE(message.ok());
  CHECK(message->generations[0].cache_space == space);
  auto response = server::ParseResponsesRequest(R"({"input":"x","cache_salt":"a"})", context,
                                                {&store, &conversations}, "u");
  REQUIRE(response.ok());
  CHECK(response->api.generations[0].cache_space == space);
}

TEST_CASE("An empty body is called empty", "[openai]") {
  const ApiError error = Parser().Refused(Endpoint::kChat, "");
  CHECK(error.code == "invalid_json");
  CHECK(error.message.find("is empty") != std::string::npos);
}

TEST_CASE("A strict server refuses fields that it does not know, on every route", "[openai]") {
  Parser parser;
  server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  context.policy.ignore_unknown_fields = false;
  server::ResponseStore store;
  server::ConversationStore conversations;
  const auto refused = [](const absl::Status& status) {
    const ApiError error = server::ToApiError(status);
    return error.param == "next_year" && error.code == "unknown_parameter";
  };
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"next_year":1})";
  const std::string prompt = R"({"prompt":"x","next_year":1})";
  CHECK(refused(server::ParseRequest(Endpoint::kChat, chat, context).status()));
  CHECK(refused(server::ParseRequest(Endpoint::kCompletion, prompt, context).status()));
  CHECK(refused(server::ParseMessagesRequest(chat, context).status()));
  CHECK(refused(server::CountMessageTokens(chat, context).status()));
  CHECK(refused(server::ParseResponsesRequest(R"({"input":"x","next_year":1})", context,
                                              {&store, &conversations}, "u")
                    .status()));
  CHECK(refused(server::CountResponseTokens(R"({"input":"x","next_year":1})", context,
                                            {&store, &conversations})
                    .status()));
  CHECK(refused(server::ParseEmbeddingRequest(server::EmbeddingTask::kEmbed,
                                              R"({"input":"x","next_year":1})", context)
                    .status()));
  CHECK(refused(server::Tokenize(prompt, context).status()));
  CHECK(refused(server::Detokenize(R"({"tokens":[],"next_year":1})", context).status()));
}

TEST_CASE("Where it is told to, the server refuses a max_tokens beyond the context", "[openai]") {
  Parser parser;
  server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  context.policy.clamp_max_tokens = false;
  for (const std::string name : {"max_tokens", "max_completion_tokens"}) {
    const std::string body = parser.ChatBody("\"" + name + "\":1000");
    const auto request = server::ParseRequest(Endpoint::kChat, body, context);
    CHECK(server::ToApiError(request.status()).http_status == 400);
    CHECK(server::ToApiError(request.status()).param == name);
  }
}

TEST_CASE("Up to 64 stop strings are taken", "[openai]") {
  Parser parser;
  const auto stops = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += base::StrCat(i == 0 ? "" : ",", "\"", i, "\"");
    return base::StrCat("\"stop\":[", list, "]");
  };
  CHECK(parser.Chat(stops(64)).stop.size() == 64);
  CHECK(parser.ChatRefused(stops(65)).message == "'stop' must have at most 64 strings, found 65");
}

TEST_CASE("A length of -1 is the rest of the context", "[openai]") {
  Parser parser;  // the context holds 100 tokens
  const ApiRequest chat = parser.Chat(R"("max_tokens":-1)");
  CHECK(chat.generations[0].max_tokens ==
        100 - static_cast<int32_t>(chat.generations[0].prompt.size()));
  CHECK(chat.warning.empty());
  // <s> and one byte
  CHECK(parser.Completion(R"({"prompt":"x","max_tokens":-1})").generations[0].max_tokens == 98);
  CHECK(parser.Completion(R"({"prompt":"x","max_completion_tokens":-1,"max_tokens":3})")
            .generations[0]
            .max_tokens == 98);
  CHECK(parser.ChatRefused(R"("max_tokens":0)").param == "max_tokens");
}

TEST_CASE("Prompts are cut to their last tokens where the client asks for it", "[openai]") {
  Parser parser;
  const auto prompt = [&parser](const std::string& members) {
    const std::string text(120, 'a');
    const ApiRequest request = parser.Completion(
        base::StrCat(R"({"prompt":")", text, R"(xyz","add_special_tokens":false,)", members, "}"));
    return parser.PromptText(request);
  };
  CHECK(prompt(R"("truncate_prompt_tokens":2)") == "yz");
  // As many as leave room for the answer: of 100, 16 are a completion's own length.
  CHECK(prompt(R"("truncate_prompt_tokens":-1,"max_tokens":40)").size() == 60);
  CHECK(prompt(R"("truncate_prompt_tokens":-1,"max_tokens":1000)").size() == 1);
  CHECK(prompt(R"("truncate_prompt_tokens":-1)").size() == 99);
  const ApiRequest echoed =
      parser.Completion(R"({"prompt":"abc","truncate_prompt_tokens":1,"echo":true})");
  CHECK(echoed.prompt_texts == std::vector<std::string>{"c"});
  const server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  const auto embedding = server::ParseEmbeddingRequest(
      server::EmbeddingTask::kEmbed,
      base::StrCat(R"({"input":")", std::string(150, 'a'), R"(z","truncate_prompt_tokens":-1})"),
      context);
  REQUIRE(embedding.ok());
  CHECK(embedding->generations[0].prompt.size() == 100);
  CHECK(embedding->generations[0].prompt.back() == 'z');
}

TEST_CASE("What belongs to another route is not passed over", "[openai]") {
  Parser parser;
  const server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  server::ResponseStore store;
  server::ConversationStore conversations;
  const auto message = [](const absl::Status& status) {
    return server::ToApiError(status).message;
  };
  CHECK(parser.ChatRefused(R"("echo":true)").param == "echo");
  CHECK(parser.ChatRefused(R"("prompt":"x")").param == "prompt");
  CHECK(parser.Refused(Endpoint::kCompletion, R"({"prompt":"x","messages":[]})").param ==
        "messages");
  for (const auto& [field, instead] :
       {std::pair{R"("max_tokens":3)", "max_output_tokens"},
        {R"("response_format":{"type":"json_object"})", "text.format"}}) {
    const std::string body = base::StrCat(R"({"input":"x",)", field, "}");
    const auto refused =
        server::ParseResponsesRequest(body, context, {&store, &conversations}, "u");
    CHECK(message(refused.status()).find(instead) != std::string::npos);
  }
  const auto refused = server::ParseMessagesRequest(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}],"stop":"a"})", context);
  CHECK(message(refused.status()).find("stop_sequences") != std::string::npos);
}

TEST_CASE("A response is drawn by the parameters of a chat", "[openai]") {
  Parser parser;
  const server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  server::ResponseStore store;
  server::ConversationStore conversations;
  const auto response = server::ParseResponsesRequest(
      R"({"input":"x","top_k":7,"min_p":0.25,"seed":5,"stop":["a"],"logit_bias":{"97":1}})",
      context, {&store, &conversations}, "u");
  REQUIRE(response.ok());
  const engine::SamplingParams& sampling = response->api.generations[0].sampling;
  CHECK(sampling.top_k == 7);
  CHECK(sampling.min_p == 0.25f);
  CHECK(sampling.seed == 5);
  CHECK(sampling.logit_bias.size() == 1);
  CHECK(response->api.stop == std::vector<std::string>{"a"});
}

TEST_CASE("Ranges are exact, and written in full", "[openai]") {
  Parser parser;
  ApiError error = parser.ChatRefused(R"("max_tokens":-2)");
  CHECK(error.message == "'max_tokens' must be from -1 to 2147483647, found -2");
  CHECK(parser.ChatRefused(R"("seed":18446744073709551616)")
            .message.find(
                "'seed' must be from -9223372036854775808 to 18446744073709551615, found ") == 0);
  CHECK(parser.Chat(R"("seed":18446744073709551615)").generations[0].sampling.seed == ~uint64_t{0});
  CHECK(parser.Chat(R"("seed":9223372036854775807)").generations[0].sampling.seed ==
        uint64_t{0x7fffffffffffffff});
  CHECK(parser.Chat(R"("seed":-9223372036854775808)").generations[0].sampling.seed == uint64_t{1}
                                                                                          << 63);
}

TEST_CASE("Allowed tools are the tools that the model sees, with their mode as the choice",
          "[openai]") {
  Parser parser;
  parser.model.max_context = 4096;
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)";
  const auto choice = [](const std::string& inner) {
    return R"("tool_choice":{"type":"allowed_tools","allowed_tools":)" + inner + "}";
  };
  const std::string g = R"({"type":"function","function":{"name":"g"}})";
  ApiRequest request = parser.Chat(tools + choice(R"({"mode":"auto","tools":[)" + g + "]}"));
  CHECK(request.tools.Has("g"));
  CHECK_FALSE(request.tools.Has("f"));
  CHECK(parser.PromptText(request).find("\"g\"") != std::string::npos);
  CHECK(parser.PromptText(request).find("\"f\"") == std::string::npos);
  const std::string mode = "tool_choice.allowed_tools.mode";
  CHECK(parser.ChatRefused(tools + choice(R"({"mode":"none","tools":[)" + g + "]}")).param == mode);
  CHECK(parser.ChatRefused(tools + choice(R"(5)")).param == mode);
  const std::string named = "tool_choice.allowed_tools.tools";
  const std::string h = R"({"type":"function","function":{"name":"h"}})";
  CHECK(parser.ChatRefused(tools + choice(R"({"mode":"auto","tools":[)" + h + "]}")).param ==
        named);
  CHECK(parser.ChatRefused(tools + choice(R"({"mode":"auto","tools":[]})")).param == named);
  CHECK(parser.ChatRefused(tools + choice(R"({"mode":"auto","tools":[{"type":"x"}]})")).param ==
        named + "[0].type");
  CHECK(parser.ChatRefused(choice(R"({"mode":"auto","tools":[)" + g + "]}")).param == named);
}

TEST_CASE("Functions of before there were tools are read as tools", "[openai]") {
  Parser parser;
  parser.model.max_context = 4096;
  auto old = parser.Parse(Endpoint::kChat, R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\":1}"}},
      {"role":"function","name":"f","content":"5"}]})");
  auto now = parser.Parse(Endpoint::kChat, R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"f","type":"function",
          "function":{"name":"f","arguments":"{\"a\":1}"}}]},
      {"role":"tool","name":"f","tool_call_id":"f","content":"5"}]})");
  REQUIRE(old.ok());
  REQUIRE(now.ok());
  CHECK(old->generations[0].prompt == now->generations[0].prompt);
  CHECK(parser
            .Refused(Endpoint::kChat,
                     R"({"messages":[{"role":"assistant","content":null,"function_call":5}]})")
            .param == "messages[0].function_call");
}

}  // namespace
}  // namespace heddle::test
