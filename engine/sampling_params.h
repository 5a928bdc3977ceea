// How the tokens of one sequence are drawn. Plain data, which may be sent to another process: a
// grammar is not part of it (engine/step.h, StepLocals).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/sample_filters.h"
#include "engine/ids.h"

namespace heddle::engine {

// Where a match of DRY (engine/sample/dry.h) ends: at any of the tokens `heads` with the tokens of
// `tail` behind it. `heads` are in ascending order.
struct DryBreaker {
  std::vector<TokenId> heads;
  std::vector<TokenId> tail;

  bool HasHead(TokenId token) const {
    return std::binary_search(heads.begin(), heads.end(), token);
  }
  bool operator==(const DryBreaker&) const = default;
};

// The parameters apply in this order: logit_bias, repetition, presence and frequency penalties,
// DRY, bans, then the filters (the order of transformers' logits processors). Ranges are validated
// by server/; the engine takes them as given.
struct SamplingParams : base::SampleFilters {
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float dry_multiplier = 0.0f;  // 0: off
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = -1;  // tokens that are looked at; -1: all
  std::vector<DryBreaker> dry_breakers;
  uint64_t seed = 0;          // with the position, the only input of the random number
  int32_t num_logprobs = -1;  // -1: none; 0: of the sampled token; n: of the n best as well
  std::vector<std::pair<TokenId, float>> logit_bias;
  int32_t min_tokens = 0;                  // none of min_tokens_banned is drawn before so many
  std::vector<TokenId> min_tokens_banned;  // end-of-sequence and stop ids
  // Guesses of the drafter beside the model are accepted by rejection sampling (kernels/sample.h):
  // more of them, but the tokens of a seed depend on the guesses; their distribution does not.
  bool rejects_guesses = false;
  // Token sequences that the answer must not hold: the last token of a word is banned where its
  // other tokens stand just before. No word is empty.
  std::vector<std::vector<TokenId>> bad_words;

  bool counts_tokens() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  bool has_dry() const { return dry_multiplier > 0.0f && dry_penalty_last_n != 0; }
  // Whether logits depend on the prompt's and the answer's tokens.
  bool has_penalties() const { return counts_tokens() || has_dry(); }

  // Whether a draw that follows `num_drawn` others depends on the last of them in other ways than
  // through the model: then it can be prepared only when that token is known.
  bool NeedsLastDraw(int32_t num_drawn) const {
    if (has_penalties()) return true;
    if (num_drawn == min_tokens && !min_tokens_banned.empty()) return true;
    return std::any_of(bad_words.begin(), bad_words.end(),
                       [](const std::vector<TokenId>& word) { return word.size() > 1; });
  }
};

// A number among the parameters. A row of the table below declares it wherever a request can set
// it: as a field of the HTTP API, with this text in /openapi.json, and to `heddle generate`, whose
// options apply by these names. Two places repeat the name: the messages of
// proto/heddle/v1/inference.proto and the option with its help in config/options_commands.cc; tests
// hold both to the table.
struct SamplingNumber {
  std::string_view name;
  std::variant<float SamplingParams::*, int32_t SamplingParams::*> member;
  double minimum;  // both included
  double maximum;
  std::string_view default_text;  // JSON, or words in brackets
  std::string_view description;

  constexpr bool is_integer() const { return member.index() == 1; }

  // REQUIRES: the value is in the range.
  void Set(double value, SamplingParams* params) const {
    if (is_integer()) {
      params->*std::get<1>(member) = static_cast<int32_t>(value);
    } else {
      params->*std::get<0>(member) = static_cast<float>(value);
    }
  }
};

// OpenAI's ranges where it has the field; vLLM's, transformers' and llama.cpp's for the rest.
inline constexpr SamplingNumber kSamplingNumbers[] = {
    {"temperature", &SamplingParams::temperature, 0, 2, "(of the model, else 1)",
     "0 always takes the likeliest token"},
    {"top_p", &SamplingParams::top_p, 0, 1, "(of the model, else 1)",
     "draw from the likeliest tokens that together have this probability"},
    {"top_k", &SamplingParams::top_k, -1, std::numeric_limits<int32_t>::max(),
     "(of the model, else 0)", "draw from so many of the likeliest tokens; 0 or -1: all"},
    {"min_p", &SamplingParams::min_p, 0, 1, "0",
     "drop tokens less likely than this times the likeliest"},
    {"typical_p", &SamplingParams::typical_p, 0, 1, "(of the model, else 1)",
     "draw from the tokens of nearly average surprise that together have this probability; above "
     "0"},
    {"top_n_sigma", &SamplingParams::top_n_sigma, -1, 100, "-1",
     "drop tokens whose logit is more than so many standard deviations below the largest; 0 or -1: "
     "none"},
    {"xtc_probability", &SamplingParams::xtc_probability, 0, 1, "0",
     "how often the likeliest tokens are left out by xtc_threshold"},
    {"xtc_threshold", &SamplingParams::xtc_threshold, 0, 1, "0.1",
     "all tokens of at least this probability but the least likely are left out; above 0.5: none"},
    {"dry_multiplier", &SamplingParams::dry_multiplier, 0, 100, "0",
     "subtracted from tokens that would make a repetition of the text's end longer, times dry_base "
     "for each token beyond dry_allowed_length"},
    {"dry_base", &SamplingParams::dry_base, 1, 100, "1.75", "see dry_multiplier"},
    {"dry_allowed_length", &SamplingParams::dry_allowed_length, 1,
     std::numeric_limits<int32_t>::max(), "2",
     "repeated tokens from which on dry_multiplier counts"},
    {"dry_penalty_last_n", &SamplingParams::dry_penalty_last_n, -1,
     std::numeric_limits<int32_t>::max(), "-1",
     "tokens of prompt and answer in which dry_multiplier looks for repetitions; -1: all"},
    {"presence_penalty", &SamplingParams::presence_penalty, -2, 2, "0",
     "subtracted from tokens already present"},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -2, 2, "0",
     "subtracted once per earlier occurrence"},
    {"repetition_penalty", &SamplingParams::repetition_penalty, 0.01, 100, "(of the model, else 1)",
     "divides the logits of tokens already present"},
};

}  // namespace heddle::engine
