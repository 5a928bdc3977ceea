// The request fields of Text Embeddings Inference's routes. See server/request/fields.h.
#pragma once

#include "server/openai/api_fields.h"
#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr Field kTeiTruncate = {
    "truncate",
    kBoolean,
    0,
    0,
    "false",
    "read the first part of a text that is longer than the context; false: that is an error"};
inline constexpr Field kTeiDirection = {"truncation_direction",       kString, 0, 16, "Right",
                                        "Right: texts lose their end"};

inline constexpr Field kTeiEmbed[] = {
    {"inputs", kStringOrArray, 0, kInfinity, "",
     "a string, strings, token ids, or arrays of token ids", true},
    {"normalize", kBoolean, 0, 0, "true", "scale to length 1"},
    {"dimensions", kInteger, 1, 1 << 20, "(all)", "so many numbers, the first, scaled to length 1"},
    {"prompt_name", kString, 0, 512, "(of the model's folder)",
     "put one of the model's prompts before texts"},
    kTeiTruncate,
    kTeiDirection,
};

inline constexpr Field kTeiPredict[] = {
    {"inputs", kStringOrArray, 0, kInfinity, "", "a string, or arrays of one string", true},
    {"raw_scores", kBoolean, 0, 0, "false", "logits of the classes"},
    {"function_to_apply", kString, 0, 16, "(of the model)", "none: logits; others change nothing"},
    {"top_k", kInteger, 1, kMaxInt32, "(all)", "so many classes, the best"},
    kTeiTruncate,
    kTeiDirection,
};

inline constexpr Field kTeiRerank[] = {
    {"query", kString, 0, kInfinity, "", "what is looked for", true},
    {"texts", kArray, 1, 2048, "", "texts", true},
    {"raw_scores", kBoolean, 0, 0, "false", "the class's logit"},
    {"return_text", kBoolean, 0, 0, "false", "with their texts"},
    kTeiTruncate,
    kTeiDirection,
};

inline constexpr Field kTeiSentences[] = {
    {"source_sentence", kString, 0, kInfinity, "", "a text", true},
    {"sentences", kArray, 1, 2048, "", "texts", true},
};

inline constexpr Field kTeiSimilarity[] = {
    {"inputs", kObject, 0, kMaxJsonMembers, "", "a text and others", true, kTeiSentences},
    {"parameters", kObject, 0, kMaxJsonMembers, "{}", "accepted and not used"},
};

}  // namespace heddle::server::fields
