// The fields of OpenAI's other routes, in the order of the documentation, and of the objects within
// them.
#pragma once

#include "server/openai/chat_fields.h"

namespace heddle::server::fields {

inline constexpr Field kReasoning[] = {
    {"effort", kString, 0, 64, "", "passed to the chat template"},
    {"summary", kString, 0, 64, "", "accepted and not used"},
};

// `format` becomes a chat's response_format, and is checked as that.
inline constexpr Field kText[] = {
    {"format", kObject, 0, kInfinity, "", "text, json_object, or json_schema with its schema"},
    {"verbosity", kString, 0, 64, "", "accepted and not used"},
};

inline constexpr Field kResponsesOwn[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 1, kInfinity, "",
     "a text, or items: messages, function_call, function_call_output, reasoning", true},
    {"instructions", kString, 0, kInfinity, "", "system message of this response alone"},
    {"previous_response_id", kString, 0, 128, "", "go on after this response, while it is kept"},
    {"conversation", kStringOrObject, 0, 128, "",
     "id of a conversation, or an object with it: its items come first, and those of this request "
     "and its answer are added to it"},
    {"max_output_tokens", kInteger, 1, kMaxInt32, "(rest of the context)",
     "tokens to generate at most, reasoning included"},
    {"stop", kStringOrArray, 0, kInfinity, "[]",
     "up to 64 strings that end the answer and are not part of it"},
    {"stream", kBoolean, 0, 0, "false", "send the answer as server-sent events"},
    {"store", kBoolean, 0, 0, "true", "keep the response in memory, as long as there is room"},
    {"background", kBoolean, 0, 0, "false",
     "answer at once with the response's id: it is computed without its client"},
    {"tools", kArray, 0, 1024, "[]", "functions the model may call"},
    {"tool_choice", kStringOrObject, 0, kInfinity, "auto",
     "auto; none: hide the tools; required, or the name of one: call"},
    {"parallel_tool_calls", kBoolean, 0, 0, "true", "more than one call per answer"},
    {"reasoning", kObject, 0, kInfinity, "", "effort: passed to the chat template", false,
     kReasoning},
    {"text", kObject, 0, kInfinity, "", "format of the answer", false, kText},
    {"top_logprobs", kInteger, 0, 20, "",
     "log-probabilities of the text, with so many alternatives"},
    {"metadata", kObject, 0, 16, "{}", "given back"},
    {"service_tier", kString, 0, 64, "default", "given back"},
    {"user", kString, 0, kInfinity, "", "given back"},
    {"truncation", kString, 0, 64, "disabled",
     "auto: the conversation loses its oldest turns where it is longer than the context"},
    {"include", kArray, 0, 64, "[]",
     "message.output_text.logprobs: log-probabilities; what else is listed has no effect"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    kLora,
    kCacheSalt,
};

inline constexpr auto kResponses = Concat(kResponsesOwn, kSampling);

inline constexpr Field kCompact[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 0, kInfinity, "", "a text, or items, as for a response"},
    {"instructions", kString, 0, kInfinity, "", "system message beside them"},
    {"previous_response_id", kString, 0, 128, "", "the conversation up to this response"},
    {"reasoning", kObject, 0, kInfinity, "", "effort: passed to the chat template", false,
     kReasoning},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    kLora,
    kCacheSalt,
};

inline constexpr Field kNewConversation[] = {
    {"items", kArray, 0, 20, "[]", "what it begins with, as the input of a response"},
    {"metadata", kObject, 0, 16, "{}", "given back"},
};

inline constexpr Field kConversationMetadata[] = {
    {"metadata", kObject, 0, 16, "", "in place of what it had", true},
};

inline constexpr Field kConversationItems[] = {
    {"items", kArray, 1, 20, "", "what is added, as the input of a response", true},
};

inline constexpr Field kResponseQuery[] = {
    {"stream", kString, 0, 8, "false", "true: the events of a response in the background"},
    {"starting_after", kInteger, 0, kInfinity, "(all)", "only those behind this sequence_number"},
};

inline constexpr Field kInputItemsQuery[] = {
    {"limit", kInteger, 1, 100, "20", "items on a page at most"},
    {"order", kString, 0, 64, "desc", "desc: the newest first; asc: the oldest first"},
    {"after", kString, 0, 128, "", "id of the last item of the page before"},
};

inline constexpr Field kTruncateTexts = {"truncate_prompt_tokens",
                                         kInteger,
                                         -1,
                                         kMaxInt32,
                                         "",
                                         "read only so many tokens of each text, of a model that "
                                         "writes text the last ones and of others "
                                         "the first; -1: as many as the context holds"};
inline constexpr Field kUseActivation = {"use_activation",
                                         kBoolean,
                                         0,
                                         0,
                                         "true",
                                         "scores as the model's folder says, in [0, 1] mostly; "
                                         "false: its logits. Of models with classes"};

inline constexpr Field kEmbeddings[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    {"encoding_format", kString, 0, 16, "float", "float, or base64 of little-endian 32-bit floats"},
    {"dimensions", kInteger, 1, 1 << 20, "(all)", "so many numbers, the first, scaled to length 1"},
    {"user", kString, 0, kInfinity, "", "accepted and not used"},
    {"prompt_name", kString, 0, 512, "(of the model's folder)",
     "put one of the model's prompts before texts, as \"query\" or \"document\""},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
    kTruncateTexts,
    kLora,
};

inline constexpr Field kClassify[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"input", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    kUseActivation,
    {"user", kString, 0, kInfinity, "", "accepted and not used"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
    kTruncateTexts,
    kLora,
};

inline constexpr Field kScore[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"text_1", kStringOrArray, 0, kInfinity, "", "a text, or as many as text_2 has", true},
    {"text_2", kStringOrArray, 0, kInfinity, "", "a text, or several", true},
    kUseActivation,
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
    kTruncateTexts,
    kLora,
};

inline constexpr Field kRerank[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"query", kString, 0, kInfinity, "", "what is looked for", true},
    {"documents", kArray, 1, 2048, "", "texts, or objects with a text", true},
    {"top_n", kInteger, 0, kMaxInt32, "(all)", "return so many of the best; 0: all"},
    {"return_documents", kBoolean, 0, 0, "true", "with their texts"},
    kUseActivation,
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode text with the begin token"},
    kTruncateTexts,
    kLora,
};

inline constexpr Field kTokenize[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model"},
    {"prompt", kString, 0, kInfinity, "", "text to encode"},
    {"content", kString, 0, kInfinity, "", "the same, under another name"},
    {"messages", kArray, 1, kInfinity, "", "or a conversation to render and encode"},
    {"tools", kArray, 0, 1024, "[]", "for the conversation"},
    {"tool_choice", kStringOrObject, 0, kInfinity, "auto", "none: hide the tools"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    {"add_generation_prompt", kBoolean, 0, 0, "true", "open the assistant's turn"},
    {"continue_final_message", kBoolean, 0, 0, "false", "leave the last message open"},
    {"reasoning_effort", kString, 0, 64, "", "passed to the chat template"},
    {"enable_thinking", kBoolean, 0, 0, "(of the template)", "passed to the chat template"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "with the begin token; of prompt only"},
    {"add_special", kBoolean, 0, 0, "false", "the same of content, which is llama.cpp's name"},
    {"return_token_strs", kBoolean, 0, 0, "false", "with the text of each token"},
    {"with_pieces", kBoolean, 0, 0, "false", "tokens as objects of id and piece: llama.cpp's form"},
};

inline constexpr Field kDetokenize[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model"},
    {"tokens", kArray, 0, kInfinity, "", "token ids", true},
};

// The fields of vLLM and of SGLang, each of which both routes take.
inline constexpr Field kLoadAdapter[] = {
    {"lora_name", kString, 1, 200, "", "the model name that it gets", true},
    {"lora_path", kString, 1, 4096, "", "within --lora-dir, or relative to it", true},
    {"load_inplace", kBoolean, 0, 0, "false", "replace what has the name"},
    {"pinned", kBoolean, 0, 0, "false", "keep it in the host's memory"},
    {"is_3d_lora_weight", kBoolean, 0, 0, "false", "accepted and not used: its tensors say it"},
};

inline constexpr Field kUnloadAdapter[] = {
    {"lora_name", kString, 1, 200, "", "its model name", true},
    {"lora_int_id", kInteger, 0, kInfinity, "", "accepted and not used"},
};

// llama.cpp's: an entry of the list of adapters.
inline constexpr Field kBaseAdapter[] = {
    {"id", kInteger, 0, kMaxInt32, "", "number of an adapter that was given at start", true},
    {"scale", kNumber, -kInfinity, kInfinity, "0",
     "its scale in answers of the base model; 0: it has no part in them"},
};

}  // namespace heddle::server::fields
