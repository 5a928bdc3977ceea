// The shapes of log-probabilities. Private to server/openai/.
#pragma once

#include <span>

#include "server/json_writer.h"
#include "server/openai/choice.h"
#include "server/openai/text_codec.h"

namespace heddle::server {

// [{"token","logprob","bytes","top_logprobs":[...]}]
void WriteTokenLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                        const TextCodec& codec, JsonWriter* json);

// {"content":[{"token","logprob","bytes","top_logprobs":[...]}],"refusal":null}
void WriteChatLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top, const TextCodec& codec,
                       JsonWriter* json);

// {"tokens","token_logprobs","top_logprobs","text_offset"}: offsets count code points of the
// choice's text, which begins with the prompt where it was echoed. The token itself is always
// among its top_logprobs, as one more where it is not one of the best. Tokens that are not whole
// code points are written "bytes:\xe2\x82".
void WriteCompletionLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                             const TextCodec& codec, JsonWriter* json);

// One entry per token of the prompt, null for the first: {"ID":{"logprob","rank","decoded_token"}}
// of the token and of the likeliest; the rank is left out where it is beyond those.
// Source: vLLM's `prompt_logprobs`.
void WritePromptLogprobs(std::span<const TokenId> prompt,
                         std::span<const engine::SampledToken> scores, int32_t num_top,
                         const TextCodec& codec, JsonWriter* json);

}  // namespace heddle::server
