// The engine loop's checks of a request, and the end of one that cannot go on. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/step.h"
#include "server/generation.h"

namespace heddle::server {

// The embedding has `vocab` rows, and as many logits are drawn from: token ids from outside must be
// within them. INVALID_ARGUMENT names the field and the token.
absl::Status CheckTokens(const GenerationRequest& request, int32_t vocab);

// How many tokens answers have from which on the request itself bans none that it could draw: ends
// that it does not want yet until then, or words to their end (the largest number). With several
// kinds of sampling, the most of them.
int32_t BansUntil(const GenerationRequest& request);

// The error of a request from which no token can be drawn, in words for its client: its own fault
// (INVALID_ARGUMENT) where the grammar or what it bans leaves none, else INTERNAL.
absl::Status StatusOf(engine::DrawFailure failure, bool bans_tokens);

}  // namespace heddle::server
