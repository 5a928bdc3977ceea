// Writes an answer as the JSON and the events of one API (OpenAI's two, Responses, Messages).
// Answer (answer.h) decides the content and the time; a format only writes it.
//
// Streamed: Begin, then per choice BeginChoice, WritePiece..., EndChoice (choices interleave), End.
// Whole: Body alone. Errors: ErrorBody before the first frame, ErrorFrames after it.
// Thread-safety: none; belongs to one answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/api_error.h"
#include "server/text/choice.h"
#include "server/toolcalls/output_parser.h"

namespace heddle::server {

struct Usage {
  int64_t prompt_tokens = 0;  // each prompt counted once, for any n
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // part of those
  bool has_prediction = false;   // the client predicted the answer (OpenAI's "prediction")
  int64_t accepted_prediction_tokens = 0;  // of the prediction, of all choices: those that came
  int64_t rejected_prediction_tokens = 0;  // and the others
  bool has_branches = false;               // the model may think in branches (parallel_format.h)
  int64_t critical_path_tokens = 0;        // of the longest way through them
  int64_t branches = 0;                    // that it has begun
  // The counts of a search over samples (sample_search.h).
  bool has_samples = false;
  int64_t samples = 0, finished_samples = 0, pruned_samples = 0;  // that were begun
  int64_t votes = 0;                                              // for the answer
  int64_t saved_tokens = 0;
  std::optional<double> reward;  // of the answer, by a reward model
};

// How long a request has taken, from its arrival, for APIs that tell it.
struct AnswerTimes {
  double queued = -1;       // until its first step; negative: not yet
  double first_token = -1;  // until its first token; negative: not yet
  double now = 0;
};

enum class EndReason : uint8_t { kStop, kLength, kToolCalls };

// The result of one choice.
struct ChoiceResult {
  std::vector<OutputPiece> pieces;  // in order; neighbours differ in kind, or are calls
  std::vector<ChoiceToken> tokens;  // if logprobs were asked for
  std::vector<size_t> token_ends;   // [pieces]: number of tokens up to the end of each
  EndReason reason = EndReason::kStop;
  std::string stop_string;            // the one that ended it, or empty
  std::optional<TokenId> stop_token;  // the client's stop token that ended it
  std::optional<TokenId> end_token;   // the same, or the model's own that ends a text
  std::vector<TokenId> token_ids;     // all that were drawn; only if they were asked for
  // For the prompt's tokens except the first; empty unless asked for.
  std::span<const engine::SampledToken> prompt_scores;

  // All text of the given kind.
  std::string Text(OutputPiece::Kind kind) const {
    std::string text;
    for (const OutputPiece& piece : pieces) {
      if (piece.kind == kind) text.append(piece.text);
    }
    return text;
  }
  // The tokens of piece number `piece`.
  std::span<const ChoiceToken> TokensOf(size_t piece) const {
    const size_t begin = piece == 0 ? 0 : token_ends[piece - 1];
    return std::span(tokens).subspan(begin, token_ends[piece] - begin);
  }
  bool has_calls() const {
    for (const OutputPiece& piece : pieces) {
      if (piece.kind == OutputPiece::Kind::kCall) return true;
    }
    return false;
  }
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // Whether the end of a streamed answer repeats its text: End then gets the pieces.
  virtual bool repeats_at_end() const { return false; }

  // Told before each event is written.
  virtual void SetTimes(const AnswerTimes& /*times*/) {}

  virtual void Begin(const Usage& /*so_far*/, std::string* /*frames*/) {}
  virtual void BeginChoice(size_t index, std::string* frames) = 0;
  // The branch whose pieces follow, of a model that thinks in branches; empty: none is named.
  virtual void SetBranch(std::string_view /*path*/) {}
  // The ids of drawn tokens, if they were asked for, before what they bring is written.
  virtual void TakeTokenIds(size_t /*index*/, std::span<const TokenId> /*ids*/) {}
  // `tokens` belong to the text of this piece; empty unless logprobs were asked for.
  virtual void WritePiece(size_t index, const OutputPiece& piece,
                          std::span<const ChoiceToken> tokens, std::string* frames) = 0;
  virtual void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) = 0;
  virtual void End(std::span<const ChoiceResult> choices, const Usage& usage,
                   std::string* frames) = 0;

  virtual std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const = 0;

  virtual std::string ErrorBody(const ApiError& error) const { return ErrorJson(error); }
  // The error and the orderly end of a stream.
  virtual std::string ErrorFrames(const ApiError& error) = 0;
  virtual std::string_view content_type() const { return "text/event-stream; charset=utf-8"; }
  // Sent between events when nothing was sent for a while; may be empty.
  virtual std::string_view keep_alive() const { return ": ping\n\n"; }
};

}  // namespace heddle::server
