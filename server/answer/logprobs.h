// Writes log-probabilities in the shapes of OpenAI's and vLLM's answers.
#pragma once

#include <span>

#include "server/json_writer.h"
#include "server/text/choice.h"
#include "server/text/text_codec.h"

namespace heddle::server {

// [{"token","logprob","bytes","top_logprobs":[...]}]
void WriteTokenLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                        const TextCodec& codec, JsonWriter* json);

// {"content":[{"token","logprob","bytes","top_logprobs":[...]}],"refusal":null}
void WriteChatLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top, const TextCodec& codec,
                       JsonWriter* json);

// {"tokens","token_logprobs","top_logprobs","text_offset"}: offsets count code points of the
// choice's text, which begins with the prompt if it was echoed. The token itself is always among
// its top_logprobs, as an extra entry if it is not one of the best. Tokens that are not whole code
// points are written "bytes:\xe2\x82".
void WriteCompletionLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                             const TextCodec& codec, JsonWriter* json);

// One entry per token of the prompt, null for the first: {"ID":{"logprob","rank","decoded_token"}}
// for the token and the likeliest ones; the rank is left out if it is beyond those.
// Source: vLLM's `prompt_logprobs`.
void WritePromptLogprobs(std::span<const TokenId> prompt,
                         std::span<const engine::SampledToken> scores, int32_t num_top,
                         const TextCodec& codec, JsonWriter* json);

}  // namespace heddle::server
