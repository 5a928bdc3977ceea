// From GenerationEvents to what the client reads: one JSON body, or server-sent events. Both ways
// take the same path, so that text, logprobs and usage are the same streamed or whole.
//
// Pure: no socket, no clock. Thread-safety: none; belongs to the connection's I/O thread.
//
// Order of a streamed answer: per choice a chunk with the role (chat), or the prompt (echo), then
// chunks with text or tool calls, then one with the finish reason alone; choices interleave. At
// last the usage, where asked for, with no choices, and "[DONE]".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/openai/api_error.h"
#include "server/openai/choice.h"
#include "server/openai/openai_request.h"
#include "server/openai/tool_calls.h"

namespace heddle::server {

struct Usage {
  int64_t prompt_tokens = 0;  // of each prompt once, whatever n
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

class Answer {
 public:
  struct Identity {
    std::string id;       // "chatcmpl-..." or "cmpl-..."
    int64_t created = 0;  // seconds since 1970
  };
  // Branches of `prompt` that ended in a stop string: the engine goes on with them until told.
  struct Output {
    std::string frames;  // server-sent events to send now; empty for a whole answer
    std::vector<int32_t> stopped_branches;
  };

  // The arguments outlive the answer. `request` must have had its generations' ids set or not: the
  // answer does not read them.
  Answer(const ApiRequest* request, const ServedModel* model, const TextCodec* codec,
         Identity identity);
  ~Answer();

  // One event of generation `prompt`. Events of choices that have ended are ignored. A failed
  // event fails the answer: see error(); its output is empty.
  void Take(size_t prompt, GenerationEvent event, Output* output);

  bool done() const { return open_choices_ == 0 || !error_.ok(); }
  const absl::Status& error() const { return error_; }
  const Usage& usage() const { return usage_; }

  // The whole answer. Call when done() without error, for a request that does not stream.
  std::string Body() const;

 private:
  struct State;  // of one choice

  void BeginChoice(size_t index, std::string* frames);
  void TakeScores(size_t prompt, std::vector<engine::SampledToken> scores);
  ChoiceDelta EchoDelta(size_t prompt) const;
  bool TakeCalls(size_t index, bool at_end, ChoiceDelta* delta, std::string* frames);
  void Deliver(size_t index, ChoiceDelta delta, std::string* frames);
  void DeliverCall(size_t index, ToolCall call, std::string* frames);
  void EndChoice(size_t index, std::string_view reason, std::string* frames);
  void WriteChunk(size_t index, std::string_view payload, const std::vector<ChoiceToken>* tokens,
                  std::string_view finish_reason, std::string* frames) const;
  std::string ContentPayload(std::string_view text) const;
  std::string CallId(size_t index, size_t call) const;
  void WriteMessage(size_t index, class JsonWriter* json) const;
  void WriteHead(std::string_view object, class JsonWriter* json) const;
  void WriteUsage(class JsonWriter* json) const;
  void WriteLogprobs(const std::vector<ChoiceToken>& tokens, class JsonWriter* json) const;
  std::string_view ObjectName(bool chunk) const;
  bool chat() const { return request_->endpoint == Endpoint::kChat; }

  const ApiRequest* request_;
  const ServedModel* model_;
  const TextCodec* codec_;
  Identity identity_;
  std::string chunk_head_;  // all chunks begin with the same members
  std::vector<State> choices_;
  std::vector<std::vector<engine::SampledToken>> prompt_scores_;  // per prompt
  std::vector<bool> prompt_seen_;
  size_t open_choices_;
  Usage usage_;
  absl::Status error_;
};

// One server-sent event that holds an error, for a stream that has begun.
std::string ErrorFrame(const ApiError& error);

}  // namespace heddle::server
