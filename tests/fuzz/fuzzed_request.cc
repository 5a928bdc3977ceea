#include "tests/fuzz/fuzzed_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/anthropic/messages_fields.h"
#include "server/cohere/cohere_fields.h"
#include "server/kserve/infer_fields.h"
#include "server/llamacpp/llama_fields.h"
#include "server/ollama/ollama_fields.h"
#include "server/openai/api_fields.h"
#include "server/tei/tei_fields.h"

namespace heddle::test {
namespace {

namespace fields = server::fields;
using server::Field;
using server::FieldType;

struct FuzzedRoute {
  std::string_view method;
  std::string_view path;
  std::span<const Field> table;
};

const FuzzedRoute kRoutes[] = {
    {"POST", "/v1/chat/completions", fields::kChat},
    {"POST", "/v1/completions", fields::kCompletion},
    {"POST", "/v1/responses", fields::kResponses},
    {"POST", "/v1/responses/input_tokens", fields::kResponses},
    {"POST", "/v1/messages", fields::kMessages},
    {"POST", "/v1/messages/count_tokens", fields::kMessages},
    {"POST", "/v1/embeddings", fields::kEmbeddings},
    {"POST", "/v1/score", fields::kScore},
    {"POST", "/v1/rerank", fields::kRerank},
    {"POST", "/v1/classify", fields::kClassify},
    {"POST", "/tokenize", fields::kTokenize},
    {"POST", "/detokenize", fields::kDetokenize},
    {"POST", "/completion", fields::kLlamaCompletion},
    {"POST", "/infill", fields::kLlamaInfill},
    {"POST", "/apply-template", fields::kApplyTemplate},
    {"POST", "/openai/deployments/demo/chat/completions", fields::kChat},
    {"POST", "/v2/models/demo/infer", fields::kInfer},
    {"GET", "/v2/models/demo", {}},
    {"GET", "/props", {}},
    {"GET", "/slots", {}},
    {"GET", "/tokenizer_info", {}},
    {"POST", "/api/chat", fields::kOllamaChat},
    {"POST", "/api/generate", fields::kOllamaGenerate},
    {"POST", "/embed", fields::kTeiEmbed},
    {"POST", "/predict", fields::kTeiPredict},
    {"POST", "/similarity", fields::kTeiSimilarity},
    {"POST", "/rerank", fields::kTeiRerank},
    {"POST", "/", fields::kTeiEmbed},
    {"POST", "/v1/embed", fields::kCohereEmbed},
    {"GET", "/info", {}},
    {"POST", "/api/embed", fields::kOllamaEmbed},
    {"POST", "/api/embeddings", fields::kOllamaEmbeddings},
    {"POST", "/api/show", fields::kOllamaShow},
    {"GET", "/api/tags", {}},
    {"GET", "/v1/models", {}},
    {"GET", "/v1/models/demo", {}},
    {"GET", "/v1/responses/resp_0", {}},
    {"GET", "/v1/responses/resp_0/input_items", {}},
    {"DELETE", "/v1/responses/resp_0", {}},
    {"POST", "/v1/responses/resp_0/cancel", {}},
    {"GET", "/metrics", {}},
    {"OPTIONS", "/v1/models", {}},
    {"PUT", "/nothing", {}},
};

// Values that some field takes, or that stand at a limit of a type.
constexpr std::string_view kValues[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "2",
    "-1",
    "4",
    "0.5",
    "1.5",
    "128",
    "1279",
    "1280",
    "3.0",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e300",
    "-1e300",
    "1e-400",
    "1e999",
    R"("")",
    R"("a")",
    R"("auto")",
    R"("none")",
    R"("required")",
    R"("text")",
    R"("json_object")",
    R"("json_schema")",
    R"("user")",
    R"("assistant")",
    R"("system")",
    R"("tool")",
    R"("function")",
    R"("base64")",
    R"("disabled")",
    R"("\ud83d\ude00")",
    R"("\ud800")",
    R"("\u0000")",
    R"("<|im_end|>")",
    "[]",
    "{}",
    "[[]]",
    "[null]",
    "[1,2,3]",
    "[1280]",
    "[-1]",
    R"(["a","b"])",
    R"([1,"a",null,{}])",
    R"({"a":1})",
    R"({"type":5})",
    R"({"5":-100})",
    R"({"1280":1})",
    R"({"x":1e300})",
    R"([{"role":"user","content":"hi"}])",
    R"([{"role":"user","content":[{"type":"text","text":"hi"}]}])",
    R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":)"
    R"({"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}])",
    R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}])",
    R"([{"role":"user","content":5}])",
    R"([{"role":5}])",
    "[5]",
    R"([{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
    R"({"type":"function_call_output","call_id":"c","output":"x"}])",
    R"([{"type":"function","function":{"name":"f","strict":true,"parameters":)"
    R"({"type":"object","properties":{"a":{"type":"integer"}}}}}])",
    R"([{"type":"function","name":"f","parameters":{"type":"object"}}])",
    R"([{"name":"f","input_schema":{"type":"object"}}])",
    R"([{"type":"function"}])",
    R"({"type":"function","function":{"name":"f"}})",
    R"({"type":"function","name":"f"})",
    R"({"type":"tool","name":"f"})",
    R"({"type":"any"})",
    R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":)"
    R"([{"type":"function","function":{"name":"f"}}]}})",
    R"({"type":"json_object"})",
    R"({"type":"json_schema","json_schema":{"name":"n","schema":{"type":"boolean"}}})",
    R"({"format":{"type":"json_schema","name":"n","schema":{"type":"integer"}}})",
    R"({"include_usage":true})",
    R"({"effort":"low"})",
    R"({"type":"enabled"})",
    R"({"type":"string","pattern":"^[ab]+$"})",
    R"({"enum":[1,"a",null]})",
    R"({"$ref":"#"})",
    R"({"type":"array","items":{"type":"number"},"maxItems":2})",
    R"({"anyOf":[true,false]})",
    R"({"type":"object","properties":{"a":{"type":"string","maxLength":3}},"required":["a"]})",
    R"("root ::= [a-z]+")",
    R"("root ::= \"yes\" | \"no\"")",
    R"("root ::= root \"a\" | \"\"")",
    R"("[a-z]{2,4}")",
    R"("(a|b)*c")",
    R"("(")",
    R"({"regex":"[0-9]+"})",
    R"({"choice":["a","b"]})",
    R"({"json_object":true,"whitespace_pattern":"[ ]?"})",
    R"({"grammar":"root ::= \"x\""})",
};

struct NamedValue {
  std::string_view name;
  std::string_view value;
};

// Values that are answered for a field of that name, so that most requests get as far as an answer.
const NamedValue kGoodValues[] = {
    {"model", R"("demo")"},
    {"messages", R"([{"role":"user","content":"hi"}])"},
    {"messages", R"([{"role":"system","content":"a"},{"role":"user","content":"b"}])"},
    {"messages", R"([{"role":"user","content":[{"type":"text","text":"hi"}]},)"
                 R"({"role":"assistant","content":"so"}])"},
    {"prompt", R"("Once upon a time")"},
    {"prompt", R"(["a","b"])"},
    {"prompt", "[1,2,3]"},
    {"prompt", "[[5],[6,7]]"},
    {"input", R"("Tell me")"},
    {"input", R"([{"role":"user","content":"hi"}])"},
    {"input", R"([{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":"f",)"
              R"("arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"}])"},
    {"input", R"([{"type":"item_reference","id":"msg_0_0"}])"},
    {"input", R"([{"type":"custom_tool_call","call_id":"c","name":"f","input":"x"},)"
              R"({"type":"custom_tool_call_output","call_id":"c","output":"y"},)"
              R"({"type":"local_shell_call","call_id":"d","action":{"command":["ls"]}}])"},
    {"documents", R"(["a","b"])"},
    {"documents", R"([{"text":"a"}])"},
    {"query", R"("q")"},
    {"text_1", R"("a")"},
    {"text_2", R"(["b","c"])"},
    {"tokens", "[1,2,1279]"},
    {"max_tokens", "4"},
    {"max_completion_tokens", "1"},
    {"max_output_tokens", "6"},
    {"n", "2"},
    {"best_of", "4"},
    {"priority", "0"},
    {"deadline_ms", "null"},
    {"workflow", "null"},
    {"stream_options", "null"},
    {"tools", R"([{"type":"function","function":{"name":"f","strict":true,"parameters":)"
              R"({"type":"object","properties":{"a":{"type":"integer"}}}}}])"},
    {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
    {"tools", R"([{"type":"function","name":"f","parameters":{"type":"object"}}])"},
    {"tools", R"([{"name":"f","input_schema":{"type":"object"}}])"},
    {"tools", R"([{"type":"custom","name":"c"},{"type":"local_shell"},{"type":"web_search"}])"},
    {"tools", R"([{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}])"},
    {"tool_choice", R"("auto")"},
    {"tool_choice", R"("none")"},
    {"tool_choice", R"("required")"},
    {"tool_choice", R"({"type":"auto"})"},
    {"response_format", R"({"type":"json_object"})"},
    {"response_format", R"({"type":"json_schema","json_schema":{"schema":{"type":"boolean"}}})"},
    {"text", R"({"format":{"type":"json_schema","name":"n","schema":{"type":"integer"}}})"},
    {"output_config", R"({"format":{"type":"json_schema","schema":{"enum":[1,"a"]}}})"},
    {"thinking", R"({"type":"enabled"})"},
    {"reasoning", R"({"effort":"low"})"},
    {"truncation", R"("auto")"},
    {"encoding_format", R"("base64")"},
    {"logit_bias", R"({"5":-100,"1279":1})"},
    {"stop_token_ids", "[3,1279]"},
    {"bad_words", R"(["a","once"])"},
    {"stop", R"(["x","yz"])"},
    {"stop_sequences", R"(["x"])"},
    {"guided_json", R"({"type":"array","items":{"type":"number"}})"},
    {"guided_regex", R"("[a-z]{2,4}")"},
    {"guided_choice", R"(["yes","no"])"},
    {"guided_grammar", R"("root ::= \"yes\" | [a-z]+")"},
    {"grammar", R"("root ::= \"a\" root | \"b\"")"},
    {"json_schema", R"({"type":"object"})"},
    {"structured_outputs", R"({"choice":["a","b"]})"},
    {"format", R"("json")"},
    {"format", R"({"type":"boolean"})"},
    {"options", R"({"num_predict":4,"temperature":0.5,"stop":["x"],"num_ctx":4096})"},
    {"think", "true"},
    {"inputs", R"([{"name":"text_input","datatype":"BYTES","shape":[2],"data":["a","b"]}])"},
    {"parameters", R"({"max_tokens":3,"temperature":0})"},
    {"n_predict", "4"},
    {"input_prefix", R"("def f(")"},
    {"input_suffix", R"("return 1")"},
    {"input_extra", R"([{"filename":"a","text":"b"}])"},
    {"prompt", R"([1,"a",2])"},
    {"think", R"("low")"},
    {"truncate_prompt_tokens", "-1"},
    {"return_token_ids", "true"},
};

// Takes choices off the front of the bytes; 0 when they are used up.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : bytes_(bytes) {}

  size_t Draw(size_t below) {
    if (below < 2) return 0;
    size_t value = Byte();
    if (below > 256) value = value << 8 | Byte();
    return value % below;
  }
  std::string Text() { return Take(Draw(24)); }
  std::string Rest() { return Take(std::min<size_t>(bytes_.size(), 256)); }
  bool empty() const { return bytes_.empty(); }

 private:
  size_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  std::string Take(size_t count) {
    const std::string taken(bytes_.substr(0, count));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view bytes_;
};

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string AnyValue(Choices* choices, int depth);

// An object with the members of `table` or of any name.
std::string ObjectOf(std::span<const Field> table, Choices* choices, int depth) {
  constexpr std::array<std::string_view, 8> kNames = {"type",   "name", "function", "schema",
                                                      "format", "text", "content",  "a"};
  std::string out = "{";
  for (size_t left = choices->Draw(5); left > 0; --left) {
    const std::string_view name = table.empty() ? kNames[choices->Draw(kNames.size())]
                                                : table[choices->Draw(table.size())].name;
    out += base::StrCat(out.size() > 1 ? "," : "", "\"", name, "\":", AnyValue(choices, depth + 1));
  }
  return out + "}";
}

std::string AnyValue(Choices* choices, int depth) {
  switch (choices->Draw(depth < 6 ? 8 : 5)) {
    case 0:
      return Quoted(choices->Text());
    case 1:
      return std::to_string(static_cast<int>(choices->Draw(2600)) - 10);
    case 5: {
      std::string out = "[";
      for (size_t left = choices->Draw(4); left > 0; --left) {
        out += base::StrCat(out.size() > 1 ? "," : "", AnyValue(choices, depth + 1));
      }
      return out + "]";
    }
    case 6:
    case 7:
      return ObjectOf({}, choices, depth);
    default:
      return std::string(kValues[choices->Draw(std::size(kValues))]);
  }
}

// One of the good values of the name, or else of those that have the type.
std::string ValueOf(const Field& field, Choices* choices) {
  std::vector<std::string_view> good;
  for (const NamedValue& named : kGoodValues) {
    if (named.name == field.name) good.push_back(named.value);
  }
  if (!good.empty() && choices->Draw(8) < 7) return std::string(good[choices->Draw(good.size())]);
  if (!field.members.empty() && choices->Draw(2) == 0) return ObjectOf(field.members, choices, 1);
  if (field.type == FieldType::kBoolean) return choices->Draw(2) == 0 ? "true" : "false";
  if (field.type == FieldType::kInteger) return std::to_string(choices->Draw(6));
  if (field.type == FieldType::kNumber) return base::StrCat("0.", choices->Draw(100));
  const bool text = field.type == FieldType::kString || field.type == FieldType::kStringOrArray;
  const bool array = field.type == FieldType::kArray || field.type == FieldType::kStringOrArray;
  const size_t begin = choices->Draw(std::size(kValues));
  for (size_t i = 0; i < std::size(kValues); ++i) {
    const std::string_view value = kValues[(begin + i) % std::size(kValues)];
    const char first = value.front();
    if ((text && first == '"') || (array && first == '[') || (!text && !array && first == '{')) {
      return std::string(value);
    }
  }
  return "null";
}

std::string MakeBody(std::span<const Field> table, Choices* choices) {
  std::string out = "{";
  const auto add = [&out](std::string_view name, const std::string& value) {
    out += base::StrCat(out.size() > 1 ? "," : "", "\"", name, "\":", value);
  };
  for (const Field& field : table) {
    if (field.required) add(field.name, ValueOf(field, choices));
  }
  for (size_t left = choices->Draw(8); left > 0; --left) {
    const Field& field = table[choices->Draw(table.size())];
    add(field.name, choices->Draw(8) == 7 ? AnyValue(choices, 0) : ValueOf(field, choices));
  }
  return out + "}";
}

}  // namespace

FuzzedRequest MakeRequest(std::string_view bytes) {
  Choices choices(bytes);
  const FuzzedRoute& route = kRoutes[choices.Draw(std::size(kRoutes))];
  FuzzedRequest request{std::string(route.method), std::string(route.path), "", ""};
  const size_t form = choices.Draw(16);
  if (form == 0 || route.table.empty()) {  // no JSON of ours
    request.query = choices.Text();
    request.body = choices.Rest();
    return request;
  }
  request.body = MakeBody(route.table, &choices);
  if (form == 1) {  // with a hole, or its end cut off
    const size_t at = choices.Draw(request.body.size());
    request.body.replace(at, choices.Draw(request.body.size() - at), choices.Text());
  }
  return request;
}

}  // namespace heddle::test
