// The forms that requests demand of their answers, by the fields of several servers.
#include <random>
#include <string>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "engine/grammar/compiled_grammar.h"
#include "nlohmann/json.hpp"
#include "server/anthropic/messages_request.h"
#include "server/openai/openai_request.h"
#include "server/openai/response_store.h"
#include "server/openai/responses_request.h"
#include "server/request/api_error.h"
#include "server/toolcalls/output_parser.h"
#include "tests/server/byte_codec.h"

namespace heddle::server {
namespace {

using Catch::Contains;
using engine::grammar::Matcher;

struct Reader {
  test::ByteCodec codec;
  ServedModel model{.id = "m", .max_context = 4096};
  RequestPolicy policy;

  Reader() { codec.output_syntax = SyntaxOf("<tool_call>"); }

  absl::StatusOr<ApiRequest> Parse(std::string_view fields) {
    RequestContext context;
    context.model = &model;
    context.codec = &codec;
    context.policy = policy;
    return ParseRequest(
        Endpoint::kChat,
        base::StrCat(R"({"messages":[{"role":"user","content":"x"}],)", fields, "}"), context);
  }

  // Whether the request's grammar derives the text; REQUIREs that it has one.
  bool Allows(const std::string& fields, std::string_view text) {
    const absl::StatusOr<ApiRequest> request = Parse(fields);
    INFO(fields << " " << request.status().message());
    REQUIRE(request.ok());
    const auto& grammar = request->generations.at(0).grammar;
    REQUIRE(grammar != nullptr);
    Matcher matcher(grammar);
    return matcher.AcceptText(text) && matcher.CanEnd();
  }

  ApiError Refused(const std::string& fields) {
    const absl::StatusOr<ApiRequest> request = Parse(fields);
    INFO(fields);
    REQUIRE_FALSE(request.ok());
    return ToApiError(request.status());
  }
};

const std::string kSchema = R"({"type":"object","properties":{"a":{"type":"integer"}},)"
                            R"("required":["a"]})";

TEST_CASE("Who is in a hurry leaves grammars that are not known, on every API", "[openai][unit]") {
  Reader reader;
  RequestContext quick;
  quick.model = &reader.model;
  quick.codec = &reader.codec;
  quick.patience.short_only = true;
  RequestContext patient = quick;
  patient.patience.short_only = false;
  const std::string messages = R"("messages":[{"role":"user","content":"x"}])";
  const auto chat = [&](const std::string& fields, const RequestContext& context) {
    return ParseRequest(Endpoint::kChat, "{" + messages + "," + fields + "}", context).status();
  };
  const std::string asked[] = {
      R"("guided_json":{"type":"integer"})",
      R"("guided_regex":"a{1,9}")",
      R"("guided_choice":["a"])",
      R"("grammar":"root ::= \"a\"")",
      R"("response_format":{"type":"json_object"})",
      R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])",
      R"("tools":[{"type":"function","function":{"name":"g","strict":true,"parameters":{}}}])",
  };
  for (const std::string& fields : asked) {
    INFO(fields);
    CHECK(IsTakesLong(chat(fields, quick)));
    CHECK(chat(fields, patient).ok());
    CHECK(chat(fields, quick).ok());
  }
  CHECK(chat(R"("tools":[{"type":"function","function":{"name":"h"}}])", quick).ok());
  CHECK(IsTakesLong(chat(R"("chat_template_kwargs":{"a":1})", quick)));
  // Errors that do not depend on the grammar are reported at once.
  CHECK(absl::IsInvalidArgument(chat(R"("guided_json":3)", quick)));
  CHECK(IsTakesLong(chat(R"("guided_json":{"type":"what"})", quick)));
  CHECK(absl::IsInvalidArgument(chat(R"("guided_json":{"type":"what"})", patient)));
  const std::string schema = R"({"type":"json_schema","schema":{"type":"number"}})";
  const std::string anthropic =
      R"({"max_tokens":1,"output_config":{"format":)" + schema + "}," + messages + "}";
  CHECK(IsTakesLong(ParseMessagesRequest(anthropic, quick).status()));
  CHECK(ParseMessagesRequest(anthropic, patient).ok());
  ResponseStore store;
  ConversationStore conversations;
  const std::string responses =
      R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"minimum":1}}}})";
  CHECK(
      IsTakesLong(ParseResponsesRequest(responses, quick, {&store, &conversations}, "u").status()));
  CHECK(ParseResponsesRequest(responses, patient, {&store, &conversations}, "u").ok());
}

TEST_CASE("What is not supported of a schema is refused, or left out with a warning",
          "[openai][unit]") {
  const std::string strange =
      R"({"type":"object","properties":{"\u00e9":{"type":"integer","multipleOf":2,)"
      R"("allOf":[{"multipleOf":3}]}},"required":["\u00e9"]})";
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + strange +
      "}}";
  const std::string forced = R"("tool_choice":"required","tools":[{"type":"function","function":)"
                             R"({"name":"f","parameters":)" +
                             strange + "}}]";
  Reader reader;
  const ApiError error = reader.Refused(format);
  CHECK(error.param == "response_format.json_schema.schema");
  CHECK_THAT(error.message, Contains("multipleOf") && Contains("#/properties/"));
  // Tools that are not strict are promised less.
  CHECK_THAT(reader.Parse(forced)->warning, Contains("tool \"f\"") && Contains("multipleOf"));
  reader.policy.drops_unsupported = true;
  for (int i = 0; i < 2; ++i) {  // also of a grammar that is known
    const auto request = reader.Parse(format);
    REQUIRE(request.ok());
    CHECK_THAT(request->warning, Contains("left out of a schema") && Contains("multipleOf") &&
                                     Contains("#/properties/??"));
  }
  CHECK(reader.Allows(format, R"({"\u00c3\u00a9":4})") == false);
  CHECK(reader.Allows(format, "{\"\xC3\xA9\":4}"));
  CHECK(reader.Parse(R"("guided_json":{"type":"integer"})")->warning.empty());
}

TEST_CASE("A grammar is GBNF or Lark by how it begins", "[openai][unit]") {
  Reader reader;
  for (const char* field : {"guided_grammar", "grammar"}) {
    CHECK(reader.Allows(base::StrCat("\"", field, "\":\"start: \\\"a\\\"+ \\\"b\\\"\""), "aab"));
    CHECK(reader.Allows(base::StrCat("\"", field, "\":\"root ::= \\\"a\\\"\""), "a"));
  }
  CHECK(reader.Allows(R"("structured_outputs":{"grammar":"start: /a+/"})", "aa"));
  CHECK_THAT(reader.Refused(R"("guided_grammar":"start: A")").message,
             Contains("guided_grammar") && Contains("\"A\""));
}

TEST_CASE("The text of a custom tool's call fits the tool's grammar", "[openai][unit]") {
  Reader reader;
  RequestContext context;
  context.model = &reader.model;
  context.codec = &reader.codec;
  ResponseStore store;
  ConversationStore conversations;
  const auto request = [&](const std::string& format, const std::string& choice) {
    return ParseResponsesRequest(R"({"input":"x","tool_choice":)" + choice +
                                     R"(,"tools":[{"type":"custom","name":"t","format":)" + format +
                                     "}]}",
                                 context, {&store, &conversations}, "u");
  };
  const std::string lark =
      R"({"type":"grammar","syntax":"lark","definition":"start: \"say \\\"\" /[a\\n]+/ \"\\\"\""})";
  const std::string regex = R"({"type":"grammar","syntax":"regex","definition":"[0-9]+\\n|x"})";
  const auto allows = [&](const std::string& format, const std::string& choice,
                          std::string_view text) {
    const auto parsed = request(format, choice);
    INFO(format << parsed.status().message());
    REQUIRE(parsed.ok());
    CHECK(parsed->api.warning.empty());
    REQUIRE(parsed->api.generations.at(0).grammar != nullptr);
    Matcher matcher(parsed->api.generations.at(0).grammar);
    return matcher.AcceptText(text) && matcher.CanEnd();
  };
  const auto call = [](const std::string& input) {
    return "<tool_call>\n{\"name\": \"t\", \"arguments\": {\"input\": \"" + input +
           "\"}}\n</tool_call>";
  };
  for (const std::string choice :
       {R"("auto")", R"("required")", R"({"type":"custom","name":"t"})"}) {
    CHECK(allows(lark, choice, call(R"(say \"a\na\")")));
    CHECK_FALSE(allows(lark, choice, call(R"(say \"b\")")));
    CHECK(allows(regex, choice, call(R"(12\n)")));
    CHECK_FALSE(allows(regex, choice, call("12")));
  }
  CHECK(allows(lark, R"("auto")", "no call"));
  CHECK(ToApiError(
            request(R"({"type":"grammar","syntax":"ebnf","definition":""})", R"("auto")").status())
            .param == "tools[0].format.syntax");
  CHECK(ToApiError(request(R"({"type":"grammar","syntax":"lark"})", R"("auto")").status()).param ==
        "tools[0].format.definition");
  CHECK_FALSE(
      request(R"({"type":"grammar","syntax":"lark","definition":"start: a"})", R"("auto")").ok());
}

TEST_CASE("Every way to ask for a schema gives the schema's grammar", "[openai][unit]") {
  Reader reader;
  for (const std::string& fields :
       {base::StrCat(R"("response_format":{"type":"json_schema",)",
                     R"("json_schema":{"name":"n","strict":true,"schema":)", kSchema, "}}"),
        base::StrCat(R"("guided_json":)", kSchema), base::StrCat(R"("json_schema":)", kSchema),
        std::string(R"("guided_json":"{\"type\":\"object\",\"properties\":{\"a\":)"
                    R"({\"type\":\"integer\"}},\"required\":[\"a\"]}")"),
        base::StrCat(R"("structured_outputs":{"json":)", kSchema, "}")}) {
    CHECK(reader.Allows(fields, R"({"a": 5})"));
    CHECK_FALSE(reader.Allows(fields, R"({"a": "5"})"));
    CHECK_FALSE(reader.Allows(fields, "{}"));
  }
}

TEST_CASE("Objects, expressions, choices and grammars are constraints too", "[openai][unit]") {
  Reader reader;
  CHECK(reader.Allows(R"("response_format":{"type":"json_object"})", R"({"x":[1,{}]})"));
  CHECK_FALSE(reader.Allows(R"("response_format":{"type":"json_object"})", "[1]"));
  CHECK(reader.Allows(R"("guided_regex":"[a-c]{2}")", "ab"));
  CHECK(reader.Allows(R"("structured_outputs":{"regex":"[a-c]{2}"})", "ca"));
  CHECK(reader.Allows(R"("guided_choice":["yes","no"])", "no"));
  CHECK_FALSE(reader.Allows(R"("guided_choice":["yes","no"])", "nope"));
  CHECK(reader.Allows(R"("grammar":"root ::= \"x\"+")", "xxx"));
  CHECK(reader.Allows(R"("guided_grammar":"root ::= \"x\"+")", "x"));
  CHECK(reader.Allows(
      R"("structured_outputs":{"json":{"type":"array"},"disable_any_whitespace":true})", "[1,2]"));
  CHECK_FALSE(reader.Allows(
      R"("structured_outputs":{"json":{"type":"array"},"disable_any_whitespace":true})", "[1, 2]"));
}

TEST_CASE("Text and null demand nothing", "[openai][unit]") {
  Reader reader;
  for (const char* fields : {R"("response_format":{"type":"text"})", R"("response_format":null)",
                             R"("guided_json":null)", R"("tool_choice":"none")"}) {
    const absl::StatusOr<ApiRequest> request = reader.Parse(fields);
    REQUIRE(request.ok());
    CHECK(request->generations.at(0).grammar == nullptr);
  }
}

TEST_CASE("An unsupported keyword is an error of the field that names keyword and place",
          "[openai][unit]") {
  Reader reader;
  const ApiError error =
      reader.Refused(R"("response_format":{"type":"json_schema","json_schema":{"schema":)"
                     R"({"properties":{"tags":{"extends":{}}}}}})");
  CHECK(error.http_status == 400);
  CHECK(error.param == "response_format.json_schema.schema");
  CHECK_THAT(error.message, Contains("extends") && Contains("#/properties/tags"));
}

TEST_CASE("What says two things or nothing known is refused", "[openai][unit]") {
  Reader reader;
  CHECK(reader.Refused(R"("response_format":{"type":"xml"})").param == "response_format.type");
  CHECK(reader.Refused(R"("response_format":{"type":"json_schema"})").param ==
        "response_format.json_schema");
  CHECK(reader.Refused(R"("guided_regex":"(")").param == "guided_regex");
  CHECK(reader.Refused(R"("guided_regex":"a","guided_choice":["a"])").param == "guided_choice");
  CHECK(reader.Refused(R"("guided_choice":[])").param == "guided_choice");
  CHECK(reader.Refused(R"("guided_choice":[1])").param == "guided_choice");
  CHECK(reader.Refused(R"("structured_outputs":{"structural_tag":{}})").param ==
        "structured_outputs.structural_tag");
  CHECK(reader.Refused(R"("structured_outputs":{"regexp":"a"})").param ==
        "structured_outputs.regexp");
  CHECK(reader.Refused(R"("structured_outputs":{"regex":"a","disable_any_whitespace":1})").param ==
        "structured_outputs.disable_any_whitespace");
  CHECK(reader.Refused(R"("structured_outputs":{"regex":null})").param == "structured_outputs");
}

TEST_CASE("A forced call is the model's format around the tool's parameters", "[openai][unit]") {
  Reader reader;
  const std::string tools =
      base::StrCat(R"("tools":[{"type":"function","function":{"name":"f","parameters":)", kSchema,
                   R"(}},{"type":"function","function":{"name":"g"}}])");
  const std::string f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string g = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const std::string required = base::StrCat(R"("tool_choice":"required",)", tools);
  CHECK(reader.Allows(required, f));
  CHECK(reader.Allows(required, g));
  CHECK_FALSE(reader.Allows(required, "hello"));
  const std::string named =
      base::StrCat(R"("tool_choice":{"type":"function","function":{"name":"f"}},)", tools);
  CHECK(reader.Allows(named, f));
  CHECK_FALSE(reader.Allows(named, g));
  CHECK(reader
            .Refused(base::StrCat(R"("tool_choice":{"type":"function","function":{"name":"h"}},)",
                                  tools))
            .param == "tool_choice.function.name");
  CHECK(reader.Refused(R"("tool_choice":"required")").param == "tool_choice");
  CHECK(reader.Refused(base::StrCat(R"("tool_choice":"sometimes",)", tools)).param ==
        "tool_choice");
  const std::string not_a_schema =
      R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f",)"
      R"("parameters":[1]}}])";
  CHECK(reader.Refused(not_a_schema).param == "tools");
}

// Names and values that each way of writing has its own rules for.
const std::string kTools = base::StrCat(
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",)",
    R"("properties":{"city":{"type":"string","maxLength":4},"days":{"type":"integer","minimum":1,)",
    R"("maximum":9},"unit":{"enum":["C","F"]},"deep":{"type":"object","properties":)",
    R"({"a":{"type":"array","items":{"type":"boolean"},"maxItems":2}},"required":["a"]}},)",
    R"("required":["city","days","deep"]}}},)",
    R"({"type":"function","function":{"name":"ping"}}])");

// Follows random tokens to the end of an answer; ends are taken where they can be.
std::string RandomAnswer(const std::shared_ptr<engine::grammar::CompiledGrammar>& grammar,
                         std::mt19937* random) {
  Matcher matcher(grammar);
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    const auto mask = matcher.Mask();
    REQUIRE(mask.ok());
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < grammar->vocabulary().size(); ++id) {
      if (engine::grammar::IsAllowed(**mask, id)) allowed.push_back(id);
    }
    const TokenId token = matcher.CanEnd() && (*random)() % 2 == 0
                              ? grammar->end_tokens().front()
                              : allowed[(*random)() % allowed.size()];
    REQUIRE(matcher.Accept(token));
    if (matcher.ended()) return text;
    text += grammar->vocabulary().text(token);
  }
  FAIL("no end in sight: " << text);
  return "";
}

// The arguments must fit the tool's schema; it is checked by hand, as the schema is small.
void CheckArguments(const ToolCall& call) {
  const auto arguments = nlohmann::json::parse(call.arguments);
  REQUIRE(arguments.is_object());
  if (call.name == "ping") return;
  REQUIRE(call.name == "get_weather");
  REQUIRE(arguments.contains("city"));
  CHECK(arguments["city"].is_string());
  CHECK(arguments["days"].get<int>() >= 1);
  CHECK(arguments["days"].get<int>() <= 9);
  CHECK(arguments["deep"]["a"].size() <= 2);
  for (const auto& flag : arguments["deep"]["a"]) CHECK(flag.is_boolean());
  if (arguments.contains("unit")) CHECK((arguments["unit"] == "C" || arguments["unit"] == "F"));
}

TEST_CASE("Whatever a forced answer is, the parser of its format finds valid calls in it",
          "[openai][unit]") {
  std::mt19937 random(20);
  for (const ToolSyntax& syntax : ToolSyntaxes()) {
    Reader reader;
    reader.codec.output_syntax = {&syntax, nullptr};
    const auto request = reader.Parse(base::StrCat(R"("tool_choice":"required",)", kTools));
    INFO(syntax.name << " " << request.status().message());
    REQUIRE(request.ok());
    for (int i = 0; i < 20; ++i) {
      const std::string text = RandomAnswer(request->generations.at(0).grammar, &random);
      INFO(text);
      OutputParser parser(request->syntax, &request->tools, false);
      std::vector<OutputPiece> pieces;
      parser.Push(text, &pieces);
      parser.Finish(/*natural=*/true, &pieces);
      REQUIRE_FALSE(pieces.empty());
      for (const OutputPiece& piece : pieces) {
        REQUIRE(piece.kind == OutputPiece::Kind::kCall);
        REQUIRE(piece.ends_call);
        CheckArguments(piece.call);
      }
    }
  }
}

TEST_CASE("A strict tool's calls are valid where the model chooses to call", "[openai][unit]") {
  Reader reader;
  const std::string tools = base::StrCat(
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)", kSchema,
      R"(}},{"type":"function","function":{"name":"g","parameters":)", kSchema, "}}]");
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  CHECK(reader.Allows(tools, "hello"));
  CHECK(reader.Allows(tools, ""));
  CHECK(reader.Allows(tools, call));
  CHECK(reader.Allows(tools, "I call: " + call + "\n" + call));
  const std::string wrong =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>";
  CHECK_FALSE(reader.Allows(tools, wrong));
  CHECK_FALSE(reader.Allows(tools, "<tool_call> hm"));
  // The other tool is not strict.
  CHECK(reader.Allows(tools,
                      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": 1}}\n</tool_call>"));
  CHECK_FALSE(reader.Allows(
      tools, "<tool_call>\n{\"name\": \"h\", \"arguments\": {\"b\": 1}}\n</tool_call>"));
  const std::string one = base::StrCat(R"("parallel_tool_calls":false,)", tools);
  CHECK(reader.Allows(one, call));
  CHECK_FALSE(reader.Allows(one, call + "\n" + call));
}

TEST_CASE("With a format for the answer, tools may still be called", "[openai][unit]") {
  Reader reader;
  const std::string fields = base::StrCat(
      R"("response_format":{"type":"json_object"},"tools":[{"type":"function","function":)",
      R"({"name":"g"}}])");
  CHECK(reader.Allows(fields, R"({"x":1})"));
  CHECK(reader.Allows(fields, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  CHECK_FALSE(reader.Allows(fields, "hello"));
}

TEST_CASE("A turn that must be a call is none of the format for answers", "[openai][unit]") {
  Reader reader;
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"g"}}])";
  const std::string call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"g"}})"}) {
    const std::string fields = base::StrCat(R"("response_format":{"type":"json_object"},)", tools,
                                            R"(,"tool_choice":)", choice);
    CHECK(reader.Allows(fields, call));
    CHECK_FALSE(reader.Allows(fields, R"({"x":1})"));
  }
  CHECK(reader.Refused(base::StrCat(R"("guided_regex":"a","tool_choice":"required",)", tools))
            .message.find("guided_regex") != std::string::npos);
}

TEST_CASE("A schema may stand beside its type", "[openai][unit]") {
  Reader reader;
  for (const char* type : {"json_object", "json_schema"}) {
    const std::string fields =
        base::StrCat(R"("response_format":{"type":")", type, R"(","schema":)", kSchema, "}");
    CHECK(reader.Allows(fields, R"({"a":1})"));
    CHECK_FALSE(reader.Allows(fields, R"({"b":1})"));
  }
  CHECK(reader.Refused(R"("response_format":{"type":"json_object","schema":{"type":"what"}})")
            .param == "response_format.schema");
}

TEST_CASE("References within a tool's parameters mean these parameters", "[openai][unit]") {
  Reader reader;
  const std::string fields =
      R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":)"
      R"({"type":"object","properties":{"x":{"$ref":"#/$defs/n"}},"required":["x"],)"
      R"("$defs":{"n":{"const":3}}}}}])";
  CHECK(reader.Allows(fields,
                      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":3}}\n</tool_call>"));
  CHECK_FALSE(reader.Allows(
      fields, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":4}}\n</tool_call>"));
}

TEST_CASE("Answers of gpt-oss are constrained within the message that they stand in",
          "[openai][unit]") {
  Reader reader;
  reader.codec.output_syntax = SyntaxOf("<|channel|> <|message|>");
  const std::string thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
  const std::string choice = R"("guided_choice":["yes"])";
  CHECK(reader.Allows(choice, "<|channel|>final<|message|>yes"));
  CHECK(reader.Allows(choice, thought + "<|channel|>final<|message|>yes"));
  CHECK_FALSE(reader.Allows(choice, thought + "yes"));
  const std::string forced = base::StrCat(R"("tool_choice":"required",)", kTools);
  CHECK(reader.Allows(forced, thought + "<|channel|>commentary to=functions.ping "
                                        "<|constrain|>json<|message|>{}<|call|>"));
  CHECK_FALSE(reader.Allows(forced, thought + "<|channel|>final<|message|>yes"));
}

TEST_CASE("Reasoning stays free, and what follows it is constrained", "[openai][unit]") {
  Reader reader;
  reader.codec.output_syntax = SyntaxOf("</think>");
  const std::string choice = R"("guided_choice":["yes"])";
  CHECK(reader.Allows(choice, "yes"));
  CHECK(reader.Allows(choice, "<think>{hm}</think>\n\nyes"));
  CHECK_FALSE(reader.Allows(choice, "<think>yes"));
  // The template has opened it.
  const std::string open =
      base::StrCat(choice, R"(,"chat_template_kwargs":{"enable_thinking":true})");
  CHECK(reader.Allows(open, "well</think>yes"));
  CHECK_FALSE(reader.Allows(open, "yes"));
}

}  // namespace
}  // namespace heddle::server
