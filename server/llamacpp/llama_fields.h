// The fields of llama.cpp's own routes, in the order of its documentation. What means the same in
// OpenAI's completions, under the same name, is in the table of these (kGeneration).
// Source: llama.cpp's tools/server/README.md.
#pragma once

#include "server/openai/chat_fields.h"

namespace heddle::server::fields {

// Fields of both routes that become others.
inline constexpr Field kLlamaRenamed[] = {
    {"n_predict", kInteger, -2, kMaxInt32, "-1",
     "tokens to generate at most; -1 and -2: all that the context holds"},
    {"repeat_penalty", kNumber, 0.01, 100, "(of the model, else 1)",
     "divides the logits of tokens already present"},
    {"n_probs", kInteger, 0, 20, "0",
     "log-probabilities of the answer's tokens, with so many alternatives"},
    {"return_tokens", kBoolean, 0, 0, "false", "send the ids of the answer's tokens as well"},
};

// Fields that are accepted without an effect.
inline constexpr Field kLlamaUnused[] = {
    {"repeat_last_n", kInteger, -1, kMaxInt32, "-1",
     "not used: repeat_penalty looks at the whole context"},
    {"cache_prompt", kBoolean, 0, 0, "true", "not used: prompts are always cached"},
    {"id_slot", kInteger, -1, kMaxInt32, "-1", "not used: there are no slots to choose from"},
    {"n_keep", kInteger, -1, kMaxInt32, "0", "not used: an answer ends where the context does"},
    {"n_discard", kInteger, 0, kMaxInt32, "0", "not used"},
    {"samplers", kStringOrArray, 0, kInfinity, "",
     "not used: docs/sampling.md has the order; a warning says so"},
    {"timings_per_token", kBoolean, 0, 0, "false", "not used: the last event has timings"},
    {"response_fields", kArray, 0, kInfinity, "[]", "not used: the whole answer is sent"},
};

inline constexpr Field kLlamaPrompt[] = {
    {"prompt", kStringOrArray, 0, kInfinity, "",
     "a string, token ids, both in one list, or several of these", true},
};

inline constexpr Field kLlamaInfillOwn[] = {
    {"input_prefix", kString, 0, kInfinity, "", "the text before what is filled in"},
    {"input_suffix", kString, 0, kInfinity, "", "the text after it"},
    {"input_extra", kArray, 0, 1024, "[]",
     "further texts that come first, [{\"filename\", \"text\"}]"},
    {"prompt", kString, 0, kInfinity, "", "the beginning of what is filled in"},
};

inline constexpr auto kLlamaCompletion =
    Concat(kLlamaPrompt, kLlamaRenamed, kLlamaUnused, kGeneration);
inline constexpr auto kLlamaInfill =
    Concat(kLlamaInfillOwn, kLlamaRenamed, kLlamaUnused, kGeneration);

inline constexpr Field kApplyTemplate[] = {
    {"messages", kArray, 1, kInfinity, "", "the conversation to render", true},
    {"tools", kArray, 0, 1024, "[]", "for the conversation"},
    {"tool_choice", kStringOrObject, 0, kInfinity, "auto", "none: hide the tools"},
    {"chat_template_kwargs", kObject, 0, kMaxJsonMembers, "{}", "further template variables"},
    {"add_generation_prompt", kBoolean, 0, 0, "true", "open the assistant's turn"},
    {"continue_final_message", kBoolean, 0, 0, "false", "leave the last message open"},
    {"reasoning_effort", kString, 0, 64, "", "passed to the chat template"},
    {"enable_thinking", kBoolean, 0, 0, "(of the template)", "passed to the chat template"},
};

// Members of what /slots lists.
inline constexpr Field kSlot[] = {
    {"id", kInteger, 0, kMaxInt32, "", "number of the slot", true},
    {"n_ctx", kInteger, 1, kMaxInt32, "", "positions that a sequence may have", true},
    {"is_processing", kBoolean, 0, 0, "", "whether a sequence runs in it", true},
};

inline constexpr Field kSlotsQuery[] = {
    {"fail_on_no_slot", kInteger, 0, 1, "0", "1: status 503 where every place is taken"},
};

}  // namespace heddle::server::fields
