#include "server/loop/request_checks.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/grammar/compiled_grammar.h"

namespace heddle::server {
namespace {

absl::Status CheckTokens(const char* where, std::span<const engine::TokenId> tokens,
                         int32_t vocab) {
  for (engine::TokenId token : tokens) {
    if (token < 0 || token >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has token ", token, "; the model knows 0 to ", vocab - 1, "."));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTokens(const GenerationRequest& request, int32_t vocab) {
  const engine::SamplingParams& sampling = request.sampling;
  HEDDLE_RETURN_IF_ERROR(CheckTokens("The prompt", request.prompt, vocab));
  for (const std::vector<engine::TokenId>& begin : request.workers) {
    HEDDLE_RETURN_IF_ERROR(CheckTokens("What a worker begins with", begin, vocab));
  }
  HEDDLE_RETURN_IF_ERROR(CheckTokens("min_tokens", sampling.min_tokens_banned, vocab));
  for (const std::vector<engine::TokenId>& word : sampling.bad_words) {
    HEDDLE_RETURN_IF_ERROR(CheckTokens("A bad word", word, vocab));
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    HEDDLE_RETURN_IF_ERROR(CheckTokens("The logit bias", {&token, 1}, vocab));
  }
  if (request.grammar != nullptr && request.grammar->vocabulary().size() > vocab) {
    return absl::InvalidArgumentError(absl::StrCat("The grammar is for ",
                                                   request.grammar->vocabulary().size(),
                                                   " tokens; the model has ", vocab, "."));
  }
  return absl::OkStatus();
}

int32_t BansUntil(const GenerationRequest& request) {
  int32_t until = 0;
  const auto extend = [&](const engine::SamplingParams& sampling) {
    if (!sampling.bad_words.empty()) until = std::numeric_limits<int32_t>::max();
    // A grammar's end may come before.
    const bool bans_ends = !sampling.min_tokens_banned.empty() && request.grammar == nullptr;
    if (bans_ends) until = std::max(until, sampling.min_tokens);
  };
  extend(request.sampling);
  std::ranges::for_each(request.sampling_of, extend);
  return until;
}

absl::Status StatusOf(engine::DrawFailure failure, bool bans_tokens) {
  switch (failure) {
    case engine::DrawFailure::kTooAmbiguous:
      return absl::InvalidArgumentError(
          "The grammar is too ambiguous: which tokens may come next was not found in bounded work. "
          "Write each text in fewer ways: no optional parts within repeats of optional parts.");
    case engine::DrawFailure::kNoTokenFits:
      return absl::InvalidArgumentError(
          "The grammar demands a text for which the model's vocabulary has no token.");
    case engine::DrawFailure::kNone:
    case engine::DrawFailure::kNothingToDraw:
      break;
  }
  if (bans_tokens) {
    return absl::InvalidArgumentError(
        "No token can be drawn: 'bad_words' or 'min_tokens', beside the grammar if there is one, "
        "ban all that could come next, or the model's logits are not numbers.");
  }
  return absl::InternalError("No token can be drawn: the model's logits are not numbers.");
}

}  // namespace heddle::server
