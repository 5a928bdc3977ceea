#include "server/openai/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"

namespace heddle::server {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kMinInt64 = -0x1p63;
constexpr double kMaxInt64 = 0x1p63;  // the doubles nearest to the limits, and not within them
constexpr double kMaxUint64 = 0x1p64;

using enum FieldType;

template <size_t A, size_t B>
constexpr std::array<Field, A + B> Concat(const Field (&a)[A], const Field (&b)[B]) {
  std::array<Field, A + B> all{};
  std::copy(a, a + A, all.begin());
  std::copy(b, b + B, all.begin() + A);
  return all;
}

constexpr Field kCacheSalt = {
    "cache_salt",
    kString,
    1,
    256,
    "",
    "computed prompts are shared only among requests with the same salt (docs/security.md)"};

// OpenAI's ranges where it has the field; vLLM's and transformers' for the rest.
constexpr Field kGenerationFields[] = {
    {"temperature", kNumber, 0, 2, "(of the model, else 1)", "0 always takes the likeliest token"},
    {"top_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"top_k", kInteger, -1, kMaxInt32, "(of the model, else 0)",
     "draw from so many of the likeliest tokens; 0 or -1: all"},
    {"min_p", kNumber, 0, 1, "0", "drop tokens less likely than this times the likeliest"},
    {"typical_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the tokens of nearly average surprise that together have this probability; above "
     "0"},
    {"seed", kInteger, kMinInt64, kMaxUint64, "(random)",
     "the same seed and request give the same answer"},
    {"presence_penalty", kNumber, -2, 2, "0", "subtracted from tokens already present"},
    {"frequency_penalty", kNumber, -2, 2, "0", "subtracted once per earlier occurrence"},
    {"repetition_penalty", kNumber, 0.01, 100, "(of the model, else 1)",
     "divides the logits of tokens already present"},
    {"logit_bias", kObject, 0, kMaxJsonMembers, "{}",
     "token id to a number from -100 to 100 that is added to its logit"},
    {"stop", kStringOrArray, 0, kInfinity, "[]",
     "up to 4 strings that end the answer and are not part of it"},
    {"stop_token_ids", kArray, 0, 256, "[]", "token ids that end the answer"},
    {"ignore_eos", kBoolean, 0, 0, "false", "go on after the model's own end of text"},
    {"min_tokens", kInteger, 0, kMaxInt32, "0", "do not end before so many tokens"},
    {"bad_words", kArray, 0, 64, "[]", "texts that the answer must not hold, up to 256 bytes each"},
    {"prompt_logprobs", kInteger, 0, 20, "",
     "log-probabilities of the prompt's tokens, with so many alternatives; not with stream"},
    {"n", kInteger, 1, 128, "1", "answers per prompt"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"stream_options", kObject, 0, kInfinity, "{}",
     "include_usage: a last event with token counts"},
    {"priority", kInteger, -kMaxInt32, kMaxInt32, "0",
     "lower is served earlier; needs --policy priority"},
    {"deadline_ms", kInteger, 1, kInfinity, "(none)",
     "milliseconds from now in which the whole answer is wanted; needs --policy deadline"},
    {"workflow", kString, 1, 256, "",
     "requests of one workflow share the deadline that its first one brought"},
    kCacheSalt,
    {"response_format", kObject, 0, kInfinity, R"({"type":"text"})",
     "text, json_object, or json_schema with the schema that the answer is valid by"},
    {"structured_outputs", kObject, 0, kInfinity, "",
     "one of json (a schema), json_object, regex, choice, grammar (GBNF); with "
     "disable_any_whitespace or whitespace_pattern"},
    {"guided_json", kStringOrObject, 0, kInfinity, "", "a JSON schema, or its text"},
    {"guided_regex", kString, 0, kInfinity, "", "a regular expression of the whole answer"},
    {"guided_choice", kArray, 0, kInfinity, "", "strings of which the answer is one"},
    {"guided_grammar", kString, 0, kInfinity, "", "a grammar in GBNF"},
    {"grammar", kString, 0, kInfinity, "", "the same"},
    {"json_schema", kObject, 0, kInfinity, "", "a JSON schema"},
    {"user", kString, 0, kInfinity, "", "accepted and not used"},
};

constexpr Field kCompletionOwn[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"prompt", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    {"max_tokens", kInteger, 0, kMaxInt32, "16",
     "tokens to generate at most; more than the context holds is cut to what it holds"},
    {"max_completion_tokens", kInteger, 0, kMaxInt32, "", "the same; wins over max_tokens"},
    {"logprobs", kInteger, 0, 20, "", "log-probabilities, with so many alternatives"},
    {"echo", kBoolean, 0, 0, "false", "the prompt comes first in the answer"},
    {"best_of", kInteger, 1, 128, "(n)",
     "draw so many answers and return the n of the highest log-probability per token; not with "
     "stream"},
    {"suffix", kString, 0, kInfinity, "",
     "the text that comes after the answer; for models with fill-in-the-middle tokens"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
};

constexpr Field kChatOwn[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"messages", kArray, 1, kInfinity, "", "the conversation so far", true},
    {"max_tokens", kInteger, 1, kMaxInt32, "(rest of the context)",
     "tokens to generate at most; more than the context holds is cut to what it holds"},
    {"max_completion_tokens", kInteger, 1, kMaxInt32, "", "the same; wins over max_tokens"},
    {"logprobs", kBoolean, 0, 0, "false", "log-probabilities of the answer's tokens"},
    {"top_logprobs", kInteger, 0, 20, "0", "with so many alternatives; needs logprobs"},
    {"tools", kArray, 0, 1024, "[]", "functions the model may call"},
    {"tool_choice", kStringOrObject, 0, kInfinity, "auto",
     "auto; none: hide the tools; required, or the name of one: call"},
    {"parallel_tool_calls", kBoolean, 0, 0, "true", "more than one call per answer"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    {"add_generation_prompt", kBoolean, 0, 0, "true", "open the assistant's turn"},
    {"continue_final_message", kBoolean, 0, 0, "false",
     "go on with the last message in place of answering it; not with add_generation_prompt"},
    {"reasoning_effort", kString, 0, 64, "",
     "passed to the chat template; none: also enable_thinking false"},
    {"enable_thinking", kBoolean, 0, 0, "(of the template)", "passed to the chat template"},
    {"include_reasoning", kBoolean, 0, 0, "true", "send the model's reasoning"},
};

constexpr auto kCompletionFields = Concat(kCompletionOwn, kGenerationFields);
constexpr auto kChatFields = Concat(kChatOwn, kGenerationFields);

constexpr Field kResponsesFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 1, kInfinity, "",
     "a text, or items: messages, function_call, function_call_output, reasoning", true},
    {"instructions", kString, 0, kInfinity, "", "system message of this response alone"},
    {"previous_response_id", kString, 0, 128, "", "go on after this response, while it is kept"},
    {"max_output_tokens", kInteger, 1, kMaxInt32, "(rest of the context)",
     "tokens to generate at most, reasoning included"},
    {"temperature", kNumber, 0, 2, "(of the model, else 1)", "0 always takes the likeliest token"},
    {"top_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"store", kBoolean, 0, 0, "true", "keep the response in memory, as long as there is room"},
    {"tools", kArray, 0, 1024, "[]", "functions the model may call"},
    {"tool_choice", kStringOrObject, 0, kInfinity, "auto",
     "auto; none: hide the tools; required, or the name of one: call"},
    {"parallel_tool_calls", kBoolean, 0, 0, "true", "more than one call per answer"},
    {"reasoning", kObject, 0, kInfinity, "", "effort: passed to the chat template"},
    {"text", kObject, 0, kInfinity, "", "format of the answer"},
    {"top_logprobs", kInteger, 0, 20, "",
     "log-probabilities of the text, with so many alternatives"},
    {"metadata", kObject, 0, 16, "{}", "given back"},
    {"user", kString, 0, kInfinity, "", "given back"},
    {"truncation", kString, 0, 64, "disabled",
     "auto: the conversation loses its oldest turns where it is longer than the context"},
    {"include", kArray, 0, 64, "[]",
     "message.output_text.logprobs: log-probabilities; what else is listed has no effect"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    kCacheSalt,
};

constexpr Field kInputItemsQuery[] = {
    {"limit", kInteger, 1, 100, "20", "items on a page at most"},
    {"order", kString, 0, 64, "desc", "desc: the newest first; asc: the oldest first"},
    {"after", kString, 0, 128, "", "id of the last item of the page before"},
};

constexpr Field kMessagesFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"messages", kArray, 1, kInfinity, "", "the conversation so far", true},
    {"max_tokens", kInteger, 1, kMaxInt32, "", "tokens to generate at most; required"},
    {"system", kStringOrArray, 0, kInfinity, "", "system message: a text, or text blocks"},
    {"stop_sequences", kArray, 0, 4, "[]", "strings that end the answer"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"temperature", kNumber, 0, 2, "(of the model, else 1)", "0 always takes the likeliest token"},
    {"top_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"top_k", kInteger, -1, kMaxInt32, "(of the model, else 0)",
     "draw from so many of the likeliest tokens"},
    {"tools", kArray, 0, 1024, "[]", "tools the model may use"},
    {"tool_choice", kObject, 0, kInfinity, "", "type: auto, any, tool (with name) or none"},
    {"thinking", kObject, 0, kInfinity, "", "type: enabled, adaptive or disabled"},
    {"output_config", kObject, 0, kInfinity, "",
     "format: a json_schema that the answer is valid by; effort: passed to the chat template"},
    {"metadata", kObject, 0, kInfinity, "{}", "accepted and not used"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    kCacheSalt,
};

constexpr Field kEmbeddingFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    {"encoding_format", kString, 0, 16, "float", "float, or base64 of little-endian 32-bit floats"},
    {"dimensions", kInteger, 1, 1 << 20, "(all)", "so many numbers, the first, scaled to length 1"},
    {"user", kString, 0, kInfinity, "", "accepted and not used"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
};

constexpr Field kScoreFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"text_1", kStringOrArray, 0, kInfinity, "", "a text, or as many as text_2 has", true},
    {"text_2", kStringOrArray, 0, kInfinity, "", "a text, or several", true},
};

constexpr Field kRerankFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"query", kString, 0, kInfinity, "", "what is looked for", true},
    {"documents", kArray, 1, 2048, "", "texts, or objects with a text", true},
    {"top_n", kInteger, 0, kMaxInt32, "(all)", "return so many of the best; 0: all"},
    {"return_documents", kBoolean, 0, 0, "true", "with their texts"},
};

constexpr Field kTokenizeFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model"},
    {"prompt", kString, 0, kInfinity, "", "text to encode"},
    {"content", kString, 0, kInfinity, "", "the same, under another name"},
    {"messages", kArray, 1, kInfinity, "", "or a conversation to render and encode"},
    {"tools", kArray, 0, 1024, "[]", "for the conversation"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    {"add_generation_prompt", kBoolean, 0, 0, "true", "open the assistant's turn"},
    {"continue_final_message", kBoolean, 0, 0, "false", "leave the last message open"},
    {"reasoning_effort", kString, 0, 64, "", "passed to the chat template"},
    {"enable_thinking", kBoolean, 0, 0, "(of the template)", "passed to the chat template"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "with the begin token; of prompt only"},
};

constexpr Field kDetokenizeFields[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model"},
    {"tokens", kArray, 0, kInfinity, "", "token ids", true},
};

constexpr RefusedField kRefusedChatFields[] = {
    {"functions", "[]", "the old form of tools is not supported; use tools"},
    {"function_call", R"("none")", "the old form of tool_choice is not supported"},
    {"modalities", R"(["text"])", "this server answers with text only"},
    {"audio", "", "this server answers with text only"},
    {"web_search_options", "", "this server does not search"},
    // Other servers' own, which would change the answer.
    {"use_beam_search", "false", "there is no beam search"},
    {"truncate_prompt_tokens", "", "prompts are not cut"},
    {"regex", "", "give the expression as 'guided_regex' or in 'structured_outputs'"},
    {"ebnf", "", "give a grammar in GBNF as 'guided_grammar' or in 'structured_outputs'"},
    {"allowed_token_ids", "", "say what the answer may be in 'structured_outputs'"},
    {"include_stop_str_in_output", "false", "stop strings are not part of the answer"},
    {"no_stop_trim", "false", "stop strings are not part of the answer"},
    {"stop_regex", "", "an answer ends at strings ('stop') or tokens ('stop_token_ids')"},
    {"skip_special_tokens", "true", "special tokens are not part of the answer"},
    {"return_token_ids", "false", "answers are text; 'logprobs' has the bytes of each token"},
    {"return_tokens_as_token_ids", "false", "'logprobs' has the text and bytes of each token"},
    {"logits_processors", "[]", "requests bring no code"},
    {"chat_template", "", "the template is the server's (--chat-template)"},
    {"documents", "[]", "give them to the template in 'chat_template_kwargs'"},
    {"thinking_token_budget", "", "reasoning is limited by 'max_completion_tokens' alone"},
    {"lora", "[]", "this version serves the base model alone"},
    {"lora_path", "", "this version serves the base model alone"},
    {"n_predict", "", "give 'max_tokens'"},
    {"random_seed", "", "give 'seed'"},
    {"repeat_penalty", "1", "give 'repetition_penalty'"},
    {"mirostat", "0", "this sampler is not supported"},
    {"dynatemp_range", "0", "this sampler is not supported"},
    {"dry_multiplier", "0", "this sampler is not supported"},
    {"xtc_probability", "0", "this sampler is not supported"},
};

constexpr RefusedField kRefusedResponsesFields[] = {
    {"background", "false", "responses are not computed in the background"},
    {"conversation", "", "conversations are not kept; use previous_response_id"},
    {"prompt", "", "there are no stored prompts"},
};

bool IsInteger(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>();
}

bool HasType(const Json& value, FieldType type) {
  switch (type) {
    case kBoolean:
      return value.is_boolean();
    case kInteger:
      return IsInteger(value);
    case kNumber:
      return value.is_number();
    case kString:
      return value.is_string();
    case kArray:
      return value.is_array();
    case kObject:
      return value.is_object();
    case kStringOrArray:
      return value.is_string() || value.is_array();
    case kStringOrObject:
      return value.is_string() || value.is_object();
  }
  return false;
}

std::string_view TypeName(FieldType type) {
  switch (type) {
    case kBoolean:
      return "a boolean";
    case kInteger:
      return "an integer";
    case kNumber:
      return "a number";
    case kString:
      return "a string";
    case kArray:
      return "an array";
    case kObject:
      return "an object";
    case kStringOrArray:
      return "a string or an array";
    case kStringOrObject:
      return "a string or an object";
  }
  return "";
}

// Whole numbers in full: 2147483647, not 2.14748e+09.
std::string Shown(double number) {
  if (number >= kMaxUint64) return base::StrCat(std::numeric_limits<uint64_t>::max());
  if (std::trunc(number) != number || number < kMinInt64) return base::StrCat(number);
  if (number >= kMaxInt64) return base::StrCat(static_cast<uint64_t>(number));
  return base::StrCat(static_cast<int64_t>(number));
}

std::string RangeText(const Field& field) {
  if (field.maximum == kInfinity) return base::StrCat("at least ", Shown(field.minimum));
  return base::StrCat("from ", Shown(field.minimum), " to ", Shown(field.maximum));
}

absl::Status CheckRange(const Json& value, const Field& field) {
  if (value.is_boolean()) return absl::OkStatus();
  bool is_number = value.is_number();
  double measure = 0;
  std::string_view what = "";  // what is counted, of values that are no numbers
  std::string_view must = " must be ";
  if (is_number) {
    measure = value.get<double>();
  } else if (value.is_string()) {
    measure = static_cast<double>(value.get_ref<const std::string&>().size());
    what = field.minimum == 1 && field.maximum == kInfinity ? " byte" : " bytes";
    must = " must have ";
  } else {
    measure = static_cast<double>(value.size());
    what = field.minimum == 1 && field.maximum == kInfinity ? " entry" : " entries";
    must = " must have ";
  }
  // 2^64 is the first that the type does not hold.
  const bool beyond =
      field.maximum == kMaxUint64 && measure == kMaxUint64 && value.is_number_float();
  if (measure >= field.minimum && measure <= field.maximum && !beyond) return absl::OkStatus();
  std::string found = is_number ? value.dump() : Shown(measure);
  return FieldError(field.name, base::StrCat("'", field.name, "'", must, RangeText(field), what,
                                             ", found ", found));
}

}  // namespace

std::span<const Field> CompletionFields() { return kCompletionFields; }
std::span<const Field> ChatFields() { return kChatFields; }
std::span<const Field> ResponsesFields() { return kResponsesFields; }
std::span<const Field> MessagesFields() { return kMessagesFields; }
std::span<const RefusedField> RefusedResponsesFields() { return kRefusedResponsesFields; }
std::span<const Field> EmbeddingFields() { return kEmbeddingFields; }
std::span<const Field> ScoreFields() { return kScoreFields; }
std::span<const Field> RerankFields() { return kRerankFields; }
std::span<const Field> TokenizeFields() { return kTokenizeFields; }
std::span<const Field> DetokenizeFields() { return kDetokenizeFields; }
std::span<const Field> InputItemsQuery() { return kInputItemsQuery; }
std::span<const RefusedField> RefusedChatFields() { return kRefusedChatFields; }

absl::Status CheckFields(const Json& body, std::span<const Field> fields) {
  for (const Field& field : fields) {
    const Json* value = Find(body, field.name);
    if (value == nullptr && field.required) {
      return FieldError(field.name, base::StrCat("'", field.name, "' is missing"),
                        "missing_required_parameter");
    }
    if (value == nullptr) continue;
    if (!HasType(*value, field.type)) {
      return FieldError(field.name,
                        base::StrCat("'", field.name, "' must be ", TypeName(field.type),
                                     ", found ", JsonKind(*value)),
                        "invalid_type");
    }
    if (absl::Status range = CheckRange(*value, field); !range.ok()) return range;
  }
  return absl::OkStatus();
}

absl::Status CheckRefused(const Json& body, std::span<const RefusedField> refused) {
  for (const RefusedField& field : refused) {
    const Json* value = Find(body, field.name);
    if (value == nullptr) continue;
    // By value: 0 may be written as 0.0.
    if (!field.only.empty() && *value == Json::parse(field.only)) continue;
    return FieldError(field.name, base::StrCat("'", field.name, "': ", field.reason),
                      "unsupported_parameter");
  }
  return absl::OkStatus();
}

absl::Status CheckKnown(const Json& body, std::span<const Field> fields,
                        std::span<const RefusedField> refused) {
  auto named = [](std::string_view name) {
    return [name](const auto& field) { return field.name == name; };
  };
  for (auto it = body.begin(); it != body.end(); ++it) {
    if (std::any_of(fields.begin(), fields.end(), named(it.key())) ||
        std::any_of(refused.begin(), refused.end(), named(it.key()))) {
      continue;
    }
    std::string name = it.key().substr(0, 64);
    return FieldError(name, base::StrCat("this server knows no field ", base::Quote(name)),
                      "unknown_parameter");
  }
  return absl::OkStatus();
}

bool GetBool(const Json& body, std::string_view name, bool fallback) {
  const Json* value = Find(body, name);
  return value == nullptr ? fallback : value->get<bool>();
}

int64_t GetInt(const Json& body, std::string_view name, int64_t fallback) {
  const Json* value = Find(body, name);
  if (value == nullptr) return fallback;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (value->is_number_unsigned()) {
    return static_cast<int64_t>(std::min(value->get<uint64_t>(), static_cast<uint64_t>(kMax)));
  }
  if (!value->is_number_float()) return value->get<int64_t>();
  const double number = value->get<double>();
  return number >= kMaxInt64 ? kMax : static_cast<int64_t>(std::max(number, kMinInt64));
}

double GetNumber(const Json& body, std::string_view name, double fallback) {
  const Json* value = Find(body, name);
  return value == nullptr ? fallback : value->get<double>();
}

}  // namespace heddle::server
