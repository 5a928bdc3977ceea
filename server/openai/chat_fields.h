// The fields of /v1/completions and /v1/chat/completions, in the order of the documentation, and of
// the objects within them. Those of branches and searches are in branching_fields.h, and the other
// routes' in api_fields.h.
#pragma once

#include "server/openai/branching_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr Field kStreamOptions[] = {
    {"include_usage", kBoolean, 0, 0, "false", "a last event with token counts"},
};

inline constexpr Field kJsonSchema[] = {
    {"name", kString, 0, kInfinity, "", "accepted and not used"},
    {"schema", kSchema, 0, kInfinity, "", "what the answer is valid by"},
};

inline constexpr Field kResponseFormat[] = {
    {"type", kString, 0, kInfinity, "", "text, json_object or json_schema"},
    {"json_schema", kObject, 0, kInfinity, "", "of the type json_schema", false, kJsonSchema},
    {"schema", kSchema, 0, kInfinity, "", "of the type json_object: what the answer is valid by"},
};

inline constexpr Field kStructuredOutputs[] = {
    {"json", kSchema, 0, kInfinity, "", "a JSON schema, or its text"},
    {"json_object", kBoolean, 0, 0, "false", "any JSON object"},
    {"regex", kString, 0, kInfinity, "", "a regular expression of the whole answer"},
    {"choice", kArray, 0, kInfinity, "", "strings of which the answer is one"},
    {"grammar", kString, 0, kInfinity, "", "a grammar in GBNF"},
    {"disable_any_whitespace", kBoolean, 0, 0, "false", "JSON without white space"},
    {"whitespace_pattern", kString, 0, kInfinity, "", "white space of JSON, as an expression"},
};

inline constexpr int32_t kMaxBeams = 64;

inline constexpr int32_t kMaxDraftTokens = 1024;  // no server drafts so many

inline constexpr Field kSpeculative[] = {
    {"off", kBoolean, 0, 0, "false", "draft nothing for this answer"},
    {"max", kInteger, 0, kMaxDraftTokens, "(of the server)", "tokens of a draft at most; 0: none"},
    {"min", kInteger, 0, kMaxDraftTokens, "0", "leave out shorter drafts"},
    {"min_p", kNumber, 0, 1, "0", "leave out tokens that are less likely to be right"},
    {"mode", kString, 0, kInfinity, "exact",
     "exact: the answer of a seed is the same with and without drafts; rejection: more guesses of "
     "a drafter with weights are accepted, and the answer's distribution is the same"},
};

inline constexpr Field kPrediction[] = {
    {"type", kString, 0, kInfinity, "content", "content"},
    {"content", kStringOrArray, 0, kInfinity, "", "a string, or parts of the type text", true},
};

inline constexpr Field kLora = {
    "lora",
    kArray,
    0,
    1024,
    "",
    "adapters that answer together, by name or number, [{\"id\", \"scale\"}]; [] is the base"};

inline constexpr Field kCacheSalt = {
    "cache_salt",
    kString,
    1,
    256,
    "",
    "computed prompts are shared only among requests with the same salt (docs/security.md)"};

inline constexpr Field kKeep = {
    "keep", kBoolean, 0,
    0,      "false",  "keep the answer for /v1/branches, under its id (docs/parallel-decoding.md)"};

// Behind what says how tokens are drawn.
inline constexpr Field kAnswer[] = {
    {"stop", kStringOrArray, 0, kInfinity, "[]",
     "up to 64 strings that end the answer and are not part of it"},
    {"include_stop_str_in_output", kBoolean, 0, 0, "false",
     "the stop string or token that ends the answer is part of it"},
    {"skip_special_tokens", kBoolean, 0, 0, "true",
     "special tokens have no text in the answer; what ends it has none in either case"},
    {"spaces_between_special_tokens", kBoolean, 0, 0, "true",
     "accepted: nothing is put between special tokens"},
    {"return_token_ids", kBoolean, 0, 0, "false",
     "send the ids of the prompt (prompt_token_ids) and of the answer (token_ids) as well"},
    {"truncate_prompt_tokens", kInteger, -1, kMaxInt32, "",
     "read only so many tokens of the prompt, the last ones; -1: as many as leave room for the "
     "answer"},
    {"prompt_logprobs", kInteger, 0, 20, "",
     "log-probabilities of the prompt's tokens, with so many alternatives; not with stream"},
    {"n", kInteger, 1, 128, "1", "answers per prompt"},
    {"branches", kArray, 1, 128, "",
     "for each of the n answers an object with its own temperature, top_p, seed and other numbers "
     "of sampling"},
    {"use_beam_search", kBoolean, 0, 0, "false",
     "the likeliest answers that a search finds, in place of drawn ones; a stream has them at its "
     "end; not with what constrains the answer (docs/parallel-decoding.md)"},
    {"beam_width", kInteger, 1, kMaxBeams, "(n, or best_of)", "beams that the search keeps"},
    {"length_penalty", kNumber, -10, 10, "1",
     "answers of the search are compared by their log-probability / length ^ length_penalty"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"stream_options", kObject, 0, kInfinity, "{}", "include_usage: a last event with token counts",
     false, kStreamOptions},
    {"priority", kInteger, -kMaxInt32, kMaxInt32, "0",
     "lower is served earlier; needs --policy priority"},
    {"deadline_ms", kInteger, 1, kInfinity, "(none)",
     "milliseconds from now in which the whole answer is wanted; needs --policy deadline"},
    {"workflow", kString, 1, 256, "",
     "requests of one workflow share the deadline that its first one brought"},
    kCacheSalt,
    kLora,
    {"response_format", kObject, 0, kInfinity, R"({"type":"text"})",
     "text, json_object, or json_schema with the schema that the answer is valid by", false,
     kResponseFormat},
    {"structured_outputs", kObject, 0, kInfinity, "",
     "one of json (a schema), json_object, regex, choice, grammar (GBNF); with "
     "disable_any_whitespace or whitespace_pattern",
     false, kStructuredOutputs},
    {"guided_json", kStringOrObject, 0, kInfinity, "", "a JSON schema, or its text"},
    {"guided_regex", kString, 0, kInfinity, "", "a regular expression of the whole answer"},
    {"guided_choice", kArray, 0, kInfinity, "", "strings of which the answer is one"},
    {"guided_grammar", kString, 0, kInfinity, "", "a grammar in GBNF"},
    {"grammar", kString, 0, kInfinity, "", "the same"},
    {"json_schema", kObject, 0, kInfinity, "", "a JSON schema"},
    {"prediction", kObject, 0, kInfinity, "",
     "text that much of the answer is expected to be: {\"type\": \"content\", \"content\"}; it "
     "comes "
     "faster where it is right (docs/speculation.md)",
     false, kPrediction},
    {"speculative", kObject, 0, kInfinity, "{}",
     "how the answer may be drafted; no draft changes it (docs/speculation.md)", false,
     kSpeculative},
    {"speculative.n_max", kInteger, 0, kMaxDraftTokens, "",
     "llama.cpp's name of speculative's max"},
    {"speculative.n_min", kInteger, 0, kMaxDraftTokens, "",
     "llama.cpp's name of speculative's min"},
    {"speculative.p_min", kNumber, 0, 1, "", "llama.cpp's name of speculative's min_p"},
    {"search", kObject, 0, kInfinity, "",
     "draw several answers and give one, by a vote or by likelihood, with as few tokens as that "
     "takes; a stream has it at its end (docs/parallel-decoding.md)",
     false, kSearch},
    {"parallel", kObject, 0, kInfinity, "",
     "the model may think in branches that run side by side (docs/parallel-decoding.md)", false,
     kParallel},
    {"user", kString, 0, kInfinity, "", "accepted and not used"},
};

inline constexpr Field kCompletionOwn[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"prompt", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    {"max_tokens", kInteger, -1, kMaxInt32, "16",
     "tokens to generate at most; more than the context holds is cut to what it holds, and -1 is "
     "all that it holds"},
    {"max_completion_tokens", kInteger, -1, kMaxInt32, "", "the same; wins over max_tokens"},
    {"logprobs", kInteger, 0, 20, "", "log-probabilities, with so many alternatives"},
    {"echo", kBoolean, 0, 0, "false", "the prompt comes first in the answer"},
    {"best_of", kInteger, 1, 128, "(n)",
     "draw so many answers and return the n of the highest log-probability per token; not with "
     "stream"},
    {"suffix", kString, 0, kInfinity, "",
     "the text that comes after the answer; for models with fill-in-the-middle tokens"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
    kKeep,
};

inline constexpr Field kChatOwn[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"messages", kArray, 1, kInfinity, "", "the conversation so far", true},
    {"max_tokens", kInteger, -1, kMaxInt32, "(rest of the context)",
     "tokens to generate at most, not 0; more than the context holds is cut to what it holds, and "
     "-1 is all that it holds"},
    {"max_completion_tokens", kInteger, -1, kMaxInt32, "", "the same; wins over max_tokens"},
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
    kKeep,
};

inline constexpr auto kGeneration = Concat(kSampling, kAnswer);
inline constexpr auto kCompletion = Concat(kCompletionOwn, kGeneration);
inline constexpr auto kChat = Concat(kChatOwn, kGeneration);

}  // namespace heddle::server::fields
