// Content, reasoning and tool calls in the output of each family's models. The texts follow the
// chat templates and format descriptions that the families publish.
#include "server/toolcalls/output_parser.h"

#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::test {
namespace {

using server::OutputParser;
using server::OutputPiece;
using server::OutputSyntax;
using server::ToolCall;
using server::ToolSet;

struct Parsed {
  std::string content;
  std::string reasoning;
  std::string order;  // of the pieces: c, r and t
  std::vector<std::string> calls;

  bool operator==(const Parsed&) const = default;
};

ToolSet Tools() {
  return {{{"get_weather", {{"city", "string"}, {"days", "integer"}, {"tags", "array"}}},
           {"get_time", {}}}};
}

OutputSyntax Syntax(std::string_view tools, std::string_view reasoning) {
  auto syntax = server::OverrideSyntax({}, tools, reasoning);
  REQUIRE(syntax.ok());
  return *syntax;
}

class Run {
 public:
  explicit Run(const OutputSyntax& syntax, bool in_reasoning = false)
      : parser_(syntax, &tools_, in_reasoning) {}
  void Push(std::string_view text) { parser_.Push(text, &pieces_); }
  Parsed Finish(bool natural = true) {
    parser_.Finish(natural, &pieces_);
    Parsed parsed;
    char last = 0;
    for (const OutputPiece& piece : pieces_) {
      if (piece.kind == OutputPiece::Kind::kArguments) {
        REQUIRE_FALSE(parsed.calls.empty());
        parsed.calls.back() += piece.text;
        continue;
      }
      char kind = piece.kind == OutputPiece::Kind::kContent     ? 'c'
                  : piece.kind == OutputPiece::Kind::kReasoning ? 'r'
                                                                : 't';
      if (kind == 't') {
        parsed.calls.push_back(piece.call.name + piece.call.arguments);
      } else {
        (kind == 'c' ? parsed.content : parsed.reasoning) += piece.text;
      }
      if (kind != last || kind == 't') parsed.order.push_back(kind);
      last = kind;
    }
    return parsed;
  }

 private:
  ToolSet tools_ = Tools();
  OutputParser parser_;
  std::vector<OutputPiece> pieces_;
};

Parsed Parse(const OutputSyntax& syntax, const std::string& text, bool natural = true) {
  Run run(syntax);
  run.Push(text);
  return run.Finish(natural);
}

struct ParsedOutput {
  std::string_view tools;
  std::string_view reasoning;
  std::string text;
  Parsed expected;
};

const std::string kKyoto = "get_weather{\"city\":\"Kyoto\",\"days\":2}";
const std::string kTime = "get_time{}";

std::vector<ParsedOutput> Cases() {
  const std::string kyoto_json =
      R"({"name": "get_weather", "arguments": {"city": "Kyoto", "days": 2}})";
  return {
      {"hermes",
       "think",
       "<think>\nThe user asks\nfor weather. \n</think>\n\nLet me look.\n<tool_call>\n" +
           kyoto_json + "\n</tool_call>\n<tool_call>{\"name\":\"get_time\"}</tool_call>\n",
       {"Let me look.", "The user asks\nfor weather.", "rctt", {kKyoto, kTime}}},
      {"qwen3-coder",
       "none",
       "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKyoto\n</parameter>\n"
       "<parameter=days>\n2\n</parameter>\n</function>\n</"
       "tool_call>\n<tool_call>\n<function=get_time>"
       "\n</function>\n</tool_call>",
       {"I look.", "", "ctt", {kKyoto, kTime}}},
      {"seed",
       "seed",
       "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=get_weather>\n"
       "<parameter=city>Kyoto</parameter>\n<parameter=days>2</parameter>\n</function>\n"
       "</seed:tool_call>",
       {"", "hm", "rt", {kKyoto}}},
      {"minimax",
       "think",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">Kyoto</parameter>"
       "\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke "
       "name=\"get_time\">\n</invoke>\n"
       "</minimax:tool_call>",
       {"", "", "tt", {kKyoto, kTime}}},
      {"glm",
       "think",
       "\n<think>ok</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Kyoto"
       "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
       "<tool_call>get_time\n</tool_call>",
       {"", "ok", "rtt", {kKyoto, kTime}}},
      {"deepseek",
       "think",
       "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
       "{\"city\": \"Kyoto\", \"days\": "
       "2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"Sure.", "", "ctt", {kKyoto, kTime}}},
      {"deepseek",
       "none",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
       "{\"city\": \"Kyoto\", \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"", "", "t", {kKyoto}}},
      {"kimi",
       "none",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Kyoto\", \"days\": 2}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       {"", "", "t", {kKyoto}}},
      {"mistral",
       "mistral",
       "[THINK]which?[/THINK]Right.[TOOL_CALLS][" + kyoto_json +
           ", {\"name\": \"get_time\", "
           "\"arguments\": {}, \"id\": \"abc123def\"}]",
       {"Right.", "which?", "rctt", {kKyoto, kTime}}},
      {"mistral",
       "none",
       "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Kyoto\", \"days\": 2}"
       "[TOOL_CALLS]get_time[CALL_ID]abc123def[ARGS]{}",
       {"", "", "tt", {kKyoto, kTime}}},
      {"granite",
       "granite",
       "Here is my thought process: easy\n\nHere is my response: One moment. <|tool_call|>[" +
           kyoto_json + "]",
       {"One moment.", "easy", "rct", {kKyoto}}},
      {"phi", "none", "<|tool_call|>[" + kyoto_json + "]<|/tool_call|>", {"", "", "t", {kKyoto}}},
      {"phi",
       "none",
       "functools[" + kyoto_json + ", {\"name\": \"get_time\"}]",
       {"", "", "tt", {kKyoto, kTime}}},
      {"cohere",
       "cohere",
       "<|START_THINKING|>plan<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
       "\"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Kyoto\", \"days\": 2}}\n]"
       "<|END_ACTION|>",
       {"", "plan", "rt", {kKyoto}}},
      {"lfm",
       "none",
       "<|tool_call_start|>[get_weather(city='Kyoto', days=2), get_time()]<|tool_call_end|>Done.",
       {"Done.", "", "ttc", {kKyoto, kTime}}},
      {"pythonic",
       "none",
       "[get_weather(city=\"Kyoto\", days=2), get_time()]",
       {"", "", "tt", {kKyoto, kTime}}},
      {"llama3-json",
       "none",
       R"({"name": "get_weather", "parameters": {"city": "Kyoto", "days": 2}}; {"name": "get_time"})",
       {"", "", "tt", {kKyoto, kTime}}},
      {"llama3-json",
       "none",
       R"(<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Kyoto", "days": 2}})",
       {"", "", "t", {kKyoto}}},
      {"granite",
       "think-response",
       "<think>sum</think>\n<response>Four. <|tool_call|>[" + kyoto_json + "]</response>",
       {"Four.", "sum", "rct", {kKyoto}}},
      {"hermes",
       "think",
       "Yes <think> no </think> maybe",
       {"Yes <think> no </think> maybe", "", "c", {}}},
      {"gpt-oss",
       "gpt-oss",
       "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary"
       "<|message|>Looking.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
       "<|constrain|>json<|message|>{\"city\": \"Kyoto\", \"days\": 2}<|call|>",
       {"Looking.", "Need weather.", "rct", {kKyoto}}},
      {"gpt-oss",
       "gpt-oss",
       "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
       {"Hi!", "Easy.", "rc", {}}},
      {"gpt-oss",
       "gpt-oss",
       "<|start|>assistant to=functions.get_weather<|channel|>commentary "
       "<|constrain|>json<|message|>"
       "{\"city\": \"Kyoto\", \"days\": 2}",
       {"", "", "t", {kKyoto}}},
  };
}

TEST_CASE("Every family's calls, reasoning and content are told apart", "[openai]") {
  for (const ParsedOutput& c : Cases()) {
    INFO(c.tools << ": " << c.text);
    Parsed parsed = Parse(Syntax(c.tools, c.reasoning), c.text);
    CHECK(parsed.content == c.expected.content);
    CHECK(parsed.reasoning == c.expected.reasoning);
    CHECK(parsed.calls == c.expected.calls);
    CHECK(parsed.order == c.expected.order);
  }
}

TEST_CASE("However the text is cut, the pieces are the same", "[openai]") {
  std::mt19937 random(20260101);
  for (const ParsedOutput& c : Cases()) {
    const OutputSyntax syntax = Syntax(c.tools, c.reasoning);
    const Parsed whole = Parse(syntax, c.text);
    for (int round = 0; round < 300; ++round) {
      Run run(syntax);
      std::string cuts;
      size_t longest = 1 + random() % 12;
      for (size_t at = 0; at < c.text.size();) {
        size_t length = 1 + random() % longest;
        run.Push(std::string_view(c.text).substr(at, length));
        at += length;
        cuts += std::to_string(at) + " ";
      }
      Parsed parsed = run.Finish();
      if (parsed == whole) continue;
      INFO(c.tools << ": " << c.text << "\ncut at " << cuts);
      CHECK(parsed.content == whole.content);
      CHECK(parsed.reasoning == whole.reasoning);
      CHECK(parsed.calls == whole.calls);
      CHECK(parsed.order == whole.order);
    }
  }
}

TEST_CASE("Cut off anywhere, no half of a call shows, and nothing is said that was not to come",
          "[openai]") {
  for (const ParsedOutput& c : Cases()) {
    for (size_t length = 0; length < c.text.size(); ++length) {
      Parsed parsed = Parse(Syntax(c.tools, c.reasoning), c.text.substr(0, length), false);
      INFO(c.tools << ": " << c.text.substr(0, length));
      for (std::string_view word : {"get_", "Kyoto", "city", "arguments", "parameters"}) {
        CHECK(parsed.content.find(word) == std::string::npos);
      }
      REQUIRE(parsed.calls.size() <= c.expected.calls.size());
      for (size_t i = 0; i < parsed.calls.size(); ++i) {
        // The last may be cut off within its arguments.
        const bool is_last = i + 1 == parsed.calls.size();
        const std::string& whole = c.expected.calls[i];
        CHECK(parsed.calls[i] == (is_last ? whole.substr(0, parsed.calls[i].size()) : whole));
      }
    }
  }
}

TEST_CASE("Arguments written as JSON come as they are written, and what ends a call ends it",
          "[openai]") {
  const OutputSyntax hermes = Syntax("hermes", "none");
  ToolSet tools = Tools();
  OutputParser parser(hermes, &tools, false);
  std::vector<OutputPiece> pieces;
  parser.Push(R"(<tool_call>{"name": "get_weather", "argum)", &pieces);
  CHECK(pieces.empty());
  parser.Push(R"(ents": {"city": "</tool_c)", &pieces);
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].call.name == "get_weather");
  CHECK(pieces[0].call.arguments == R"({"city":"</tool_c)");
  CHECK_FALSE(pieces[0].ends_call);
  pieces.clear();
  parser.Push(R"(all>", "days)", &pieces);  // a mark within a string is text
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].kind == OutputPiece::Kind::kArguments);
  CHECK(pieces[0].text == R"(all>","days)");
  pieces.clear();
  parser.Push("\": 2 }}\n</tool_call> x", &pieces);
  parser.Finish(true, &pieces);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].text == "\":2}");
  CHECK(pieces[0].ends_call);
  CHECK(pieces[1].text == "x");
}

TEST_CASE("A call whose arguments break off is what was written of it", "[openai]") {
  const OutputSyntax hermes = Syntax("hermes", "none");
  const std::string broken = R"(<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>b)";
  CHECK(Parse(hermes, broken).calls == std::vector<std::string>{R"(f{"a":1)"});
  CHECK(Parse(hermes, broken).content == "b");
  const std::string cut = R"(<tool_call>{"name": "f", "arguments": {"a": "b )";
  CHECK(Parse(hermes, cut, /*natural=*/false).calls == std::vector<std::string>{R"(f{"a":"b )"});
  // The name is not over when the call is.
  const std::string none = R"(<tool_call>{"name": "a</tool_call>", "arguments": {}}</tool_call>)";
  CHECK(Parse(hermes, none).calls.empty());
  for (size_t at = 1; at < none.size(); ++at) {
    Run run(hermes);
    run.Push(none.substr(0, at));
    run.Push(none.substr(at));
    CHECK(run.Finish().content == none);
  }
}

TEST_CASE("What only looks like a call is content", "[openai]") {
  const OutputSyntax hermes = Syntax("hermes", "none");
  CHECK(Parse(hermes, "a <tool_cal").content == "a <tool_cal");
  CHECK(Parse(hermes, "x<tool_call>not json</tool_call>y").content ==
        "x<tool_call>not json</tool_call>y");
  CHECK(Parse(hermes, R"(<tool_call>{"name":"f","arguments":[1]}</tool_call>)").calls.empty());
  const OutputSyntax llama = Syntax("llama3-json", "none");
  CHECK(Parse(llama, R"({"name": "Bob", "age": 3})").content == R"({"name": "Bob", "age": 3})");
  CHECK(Parse(llama, R"({"answer": 42} is it)").content == R"({"answer": 42} is it)");
  CHECK(Parse(llama, R"(See {"name": "get_time"})").content == R"(See {"name": "get_time"})");
  const OutputSyntax pythonic = Syntax("pythonic", "none");
  CHECK(Parse(pythonic, "[1] says (so)").content == "[1] says (so)");
  CHECK(Parse(pythonic, "[f(x)] is no literal").content == "[f(x)] is no literal");
  CHECK(Parse(pythonic, "[note").content == "[note");
}

TEST_CASE("A call that lacks only its closing mark counts where the model ended by itself",
          "[openai]") {
  const OutputSyntax hermes = Syntax("hermes", "none");
  const std::string open = R"(<tool_call>{"name": "get_time"})";
  CHECK(Parse(hermes, open, /*natural=*/true).calls == std::vector<std::string>{kTime});
  CHECK(Parse(hermes, open, /*natural=*/false).calls.empty());
  CHECK(Parse(hermes, "x " + open.substr(0, 24), /*natural=*/true).content == "x");
}

TEST_CASE("Values without quotes take the type that the tool declares", "[openai]") {
  const std::string head = "<tool_call><function=get_weather>";
  auto argument = [&](const std::string& key, const std::string& value) {
    Parsed parsed =
        Parse(Syntax("qwen3-coder", "none"),
              head + "<parameter=" + key + ">\n" + value + "\n</parameter></function></tool_call>");
    REQUIRE(parsed.calls.size() == 1);
    return parsed.calls[0];
  };
  CHECK(argument("city", "12") == R"(get_weather{"city":"12"})");
  CHECK(argument("city", "two\nlines") == R"(get_weather{"city":"two\nlines"})");
  CHECK(argument("days", "12") == R"(get_weather{"days":12})");
  CHECK(argument("days", "many") == R"(get_weather{"days":"many"})");
  CHECK(argument("tags", R"(["a", {"b": null}])") == R"(get_weather{"tags":["a",{"b":null}]})");
  CHECK(argument("unknown", "12") == R"(get_weather{"unknown":"12"})");
}

TEST_CASE("Python literals become JSON", "[openai]") {
  // The JSON is what Python's json.dumps(..., ensure_ascii=False, separators=(",", ":")) prints of
  // the same dict.
  Parsed parsed = Parse(Syntax("pythonic", "none"),
                        R"([a.b(s='it\'s "x"\n\u00e9\x41', i=-5, f=2.5, e=1e3, t=True, n=None, )"
                        R"(l=[1, 'a', (2, 3)], d={'k': {'z': []}},)])");
  REQUIRE(parsed.calls.size() == 1);
  CHECK(parsed.calls[0] ==
        R"(a.b{"s":"it's \"x\"\né)"
        R"(A","i":-5,"f":2.5,"e":1000.0,"t":true,"n":null,"l":[1,"a",[2,3]],"d":{"k":{"z":[]}}})");
  for (const char* text : {"[f(", "[f(a)]", "[f(a=)]", "[f(a=1]", "[f(a='x)]", "[f(a=b)]",
                           "[f(a=1e999)]", "[f(a='\\ud800')]", "[]"}) {
    INFO(text);
    CHECK(Parse(Syntax("pythonic", "none"), text).calls.empty());
  }
}

TEST_CASE("A prompt that has opened the reasoning leaves its end to the model", "[openai]") {
  const OutputSyntax syntax = Syntax("none", "think");
  CHECK(server::EndsInReasoning("<|assistant|><think>\n", syntax));
  CHECK_FALSE(server::EndsInReasoning("<think>\n\n</think>\n\n", syntax));
  CHECK_FALSE(server::EndsInReasoning("<think>", Syntax("none", "none")));
  for (size_t piece : {1, 2, 3, 100}) {
    const std::string text = "\nhm, hm \n</think>\n\nYes <think> no.";
    Run run(syntax, /*in_reasoning=*/true);
    for (size_t at = 0; at < text.size(); at += piece) {
      run.Push(std::string_view(text).substr(at, piece));
    }
    Parsed parsed = run.Finish();
    CHECK(parsed.reasoning == "hm, hm");
    CHECK(parsed.content == "Yes <think> no.");  // reasoning only comes first
  }
}

TEST_CASE("Text that never ends its call does not cost more and more", "[openai]") {
  for (const char* tools : {"hermes", "granite", "llama3-json"}) {
    Run run(Syntax(tools, "none"));
    const std::string open = tools == std::string("llama3-json") ? R"({"name": ")" : "<tool_call>{";
    run.Push(open);
    for (int i = 0; i < 300000; ++i) run.Push("x");
    Parsed parsed = run.Finish();
    CHECK(parsed.content.size() == 300000 + open.size());
    CHECK(parsed.calls.empty());
  }
}

TEST_CASE("An operator names a row, or gets told the names", "[openai]") {
  OutputSyntax detected = server::SyntaxOf("<tool_call> </think>");
  CHECK(server::OverrideSyntax(detected, "auto", "auto")->tools == detected.tools);
  CHECK(server::OverrideSyntax(detected, "none", "auto")->tools == nullptr);
  CHECK(server::OverrideSyntax(detected, "mistral", "none")->tools->name == "mistral");
  auto wrong = server::OverrideSyntax(detected, "mistrall", "auto");
  CHECK(std::string(wrong.status().message()).find("hermes, ") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
