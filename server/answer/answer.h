// Turns GenerationEvents into what the client reads: one JSON body, or server-sent events. Both
// share their code, so that text, calls, logprobs and usage are the same streamed or whole.
//
// Pure: no socket, no clock. Thread-safety: none; belongs to the connection's I/O thread.
//
// A choice consists of text (content or reasoning) and tool calls, in the order in which the model
// wrote them; the AnswerFormat gives them the shape of an API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer/answer_format.h"
#include "server/answer/api_request.h"
#include "server/generation.h"

namespace heddle::server {

class Answer {
 public:
  // The branches of `prompt` that ended at a stop string: the engine continues them until told.
  struct Output {
    std::string frames;  // server-sent events to send now; empty for a whole answer
    std::vector<int32_t> stopped_branches;
  };

  // The arguments outlive the answer, which does not read the ids of `request`'s generations.
  Answer(const ApiRequest* request, const TextCodec* codec, std::unique_ptr<AnswerFormat> format);
  ~Answer();

  // Takes one event of generation `prompt`. Events of choices that have ended are ignored. A failed
  // event fails the answer (see error()), and its output is empty.
  void Take(size_t prompt, GenerationEvent event, Output* output);

  bool done() const { return open_branches_ == 0 || !error_.ok(); }
  const absl::Status& error() const { return error_; }
  const Usage& usage() const { return usage_; }
  Usage& usage() { return usage_; }
  AnswerFormat& format() { return *format_; }

  // The finish reasons of the choices that have ended: "stop", "length" or "tool_calls".
  std::vector<std::string> finish_reasons() const;

  // The content of a choice so far; only of an answer that comes at once.
  std::string Content(size_t index) const;
  // Branch `index` alone is the answer, whatever the others are: a search has chosen it.
  void Choose(size_t index) { chosen_ = index; }
  // The whole answer. Call when done() without error, or behind Choose, for an answer that comes at
  // once: as one body, or as all frames of a stream.
  std::string Body() const;
  std::string Frames() const;

 private:
  struct Branch;

  void TakeScores(size_t prompt, std::vector<engine::SampledToken> scores);
  void FollowPrediction(std::span<const TokenId> prediction, Branch* branch);
  void CountPredicted(TokenId token, Branch* branch);
  void BeginBranch(size_t index, std::string* frames);
  ChoiceDelta EchoDelta(size_t prompt) const;
  bool PushTokens(size_t index, std::vector<engine::SampledToken> tokens,
                  std::vector<OutputPiece>* pieces);
  void TakeTokenId(size_t index, TokenId token);
  void Parse(size_t index, ChoiceDelta delta, std::vector<OutputPiece>* pieces);
  bool HasAllCalls(std::vector<OutputPiece>* pieces) const;
  void Deliver(size_t index, std::vector<OutputPiece> pieces, bool at_end, std::string* frames);
  void DeliverPiece(size_t index, OutputPiece piece, std::vector<ChoiceToken> tokens,
                    std::string* frames);
  void EndBranch(size_t index, bool length, std::string* frames);
  std::vector<ChoiceResult> Results() const;

  const ApiRequest* request_;
  // Pieces are written as they come. Without it the answer comes at once, when it is complete.
  const bool streams_;
  const TextCodec* codec_;
  std::unique_ptr<AnswerFormat> format_;
  std::vector<std::string_view> marks_;  // marks of the request's syntax
  std::vector<Branch> branches_;
  std::vector<std::vector<engine::SampledToken>> prompt_scores_;  // per prompt
  std::vector<bool> prompt_seen_;
  size_t open_branches_;
  bool begun_ = false;
  std::optional<size_t> chosen_;
  Usage usage_;
  absl::Status error_;
};

}  // namespace heddle::server
