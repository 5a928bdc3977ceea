// The fields of Ollama's routes, in the order of its documentation, and of the objects within them.
// Source: Ollama's docs/api.md and docs/modelfile.md.
#pragma once

#include "server/openai/api_fields.h"

namespace heddle::server::fields {

// How an answer is drawn. Ranges are those of the fields that these become (ollama_options.cc).
inline constexpr Field kOllamaDrawing[] = {
    {"num_predict", kInteger, -2, kMaxInt32, "-1",
     "tokens to generate at most; -1 and -2: all that the context holds"},
    {"seed", kInteger, kMinInt64, kMaxUint64, "(random)",
     "the same seed and request give the same answer"},
    {"stop", kStringOrArray, 0, kInfinity, "[]",
     "up to 64 strings that end the answer and are not part of it"},
    {"temperature", kNumber, 0, 2, "(of the model, else 1)", "0 always takes the likeliest token"},
    {"top_k", kInteger, -1, kMaxInt32, "(of the model, else 0)",
     "draw from so many of the likeliest tokens"},
    {"top_p", kNumber, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"min_p", kNumber, 0, 1, "(of the model, else 0)",
     "leave out tokens less likely than this share of the likeliest"},
    {"typical_p", kNumber, 0, 1, "1", "draw from tokens of typical surprise"},
    {"repeat_penalty", kNumber, 0, kInfinity, "(of the model, else 1)",
     "divides the logits of tokens that were used"},
    {"presence_penalty", kNumber, -2, 2, "0", "taken from the logits of tokens that were drawn"},
    {"frequency_penalty", kNumber, -2, 2, "0", "the same, for each time they were drawn"},
};

// Fields that are decided when the server is started, or have no effect here.
inline constexpr Field kOllamaRunning[] = {
    {"num_ctx", kInteger, 0, kMaxInt32, "(of the server)",
     "not used: the context is the server's; a warning says so where it holds less"},
    {"repeat_last_n", kInteger, -1, kMaxInt32, "-1",
     "not used: repeat_penalty looks at the whole context; a warning says so"},
    {"mirostat", kInteger, 0, 0, "0", "only 0: this sampler is not supported"},
    {"mirostat_tau", kNumber, -kInfinity, kInfinity, "", "not used"},
    {"mirostat_eta", kNumber, -kInfinity, kInfinity, "", "not used"},
    {"tfs_z", kNumber, -kInfinity, kInfinity, "", "not used"},
    {"penalize_newline", kBoolean, 0, 0, "", "not used"},
    {"num_keep", kInteger, -1, kMaxInt32, "", "not used"},
    {"num_batch", kInteger, 0, kMaxInt32, "", "not used: the server decides"},
    {"num_gpu", kInteger, -1, kMaxInt32, "", "not used: the server decides"},
    {"main_gpu", kInteger, 0, kMaxInt32, "", "not used: the server decides"},
    {"num_thread", kInteger, 0, kMaxInt32, "", "not used: the server decides"},
    {"use_mmap", kBoolean, 0, 0, "", "not used: the server decides"},
};

inline constexpr auto kOllamaOptions = Concat(kOllamaDrawing, kOllamaRunning);

inline constexpr Field kOllamaModel = {"model",
                                       kString,
                                       0,
                                       512,
                                       "(the served model)",
                                       "name of the model, see /api/tags; ':latest' may follow it"};
inline constexpr Field kOllamaKeepAlive = {
    "keep_alive", kAny, 0, 0, "", "accepted and not used: the model stays in memory"};

// Fields of both routes that generate.
inline constexpr Field kOllamaAnswer[] = {
    kOllamaModel,
    {"stream", kBoolean, 0, 0, "true", "send the answer piece by piece, as lines of JSON"},
    {"format", kStringOrObject, 0, kInfinity, "",
     "json, or a JSON schema that the answer is valid by"},
    {"options", kObject, 0, kMaxJsonMembers, "{}", "how the answer is drawn", false,
     kOllamaOptions},
    {"think", kAny, 0, 0, "(of the template)",
     "true or false, passed to the chat template as enable_thinking; low, medium or high, passed "
     "as reasoning_effort"},
    {"logprobs", kBoolean, 0, 0, "false", "log-probabilities of the answer's tokens"},
    {"top_logprobs", kInteger, 0, 20, "0", "with so many alternatives; needs logprobs"},
    {"truncate", kBoolean, 0, 0, "true", "accepted: a prompt that does not fit is an error"},
    {"shift", kBoolean, 0, 0, "true", "accepted: an answer ends where the context does"},
    kOllamaKeepAlive,
};

inline constexpr Field kOllamaChatOwn[] = {
    {"messages", kArray, 0, kInfinity, "[]",
     "the conversation so far; without one, the answer says that the model is loaded"},
    {"tools", kArray, 0, 1024, "[]", "functions the model may call"},
};

inline constexpr Field kOllamaGenerateOwn[] = {
    {"prompt", kString, 0, kInfinity, "",
     "what is answered; without one, the answer says that the model is loaded"},
    {"suffix", kString, 0, kInfinity, "",
     "the text that comes after the answer; for models with fill-in-the-middle tokens"},
    {"system", kString, 0, kInfinity, "", "system message"},
    {"raw", kBoolean, 0, 0, "false", "go on with the prompt, without the chat template"},
};

inline constexpr auto kOllamaChat = Concat(kOllamaChatOwn, kOllamaAnswer);
inline constexpr auto kOllamaGenerate = Concat(kOllamaGenerateOwn, kOllamaAnswer);

inline constexpr Field kOllamaEmbed[] = {
    kOllamaModel,
    {"input", kStringOrArray, 0, kInfinity, "", "a text, or several", true},
    {"truncate", kBoolean, 0, 0, "true",
     "read the last part of a text that is longer than the context; false: that is an error"},
    {"dimensions", kInteger, 1, 1 << 20, "(all)", "so many numbers, the first, scaled to length 1"},
    {"options", kObject, 0, kMaxJsonMembers, "{}", "accepted and not used"},
    kOllamaKeepAlive,
};

inline constexpr Field kOllamaEmbeddings[] = {
    kOllamaModel,
    {"prompt", kString, 0, kInfinity, "", "a text", true},
    {"options", kObject, 0, kMaxJsonMembers, "{}", "accepted and not used"},
    kOllamaKeepAlive,
};

inline constexpr Field kOllamaShow[] = {
    kOllamaModel,
    {"name", kString, 0, 512, "", "the same, under its old name"},
    {"verbose", kBoolean, 0, 0, "false", "accepted and not used"},
};

}  // namespace heddle::server::fields
