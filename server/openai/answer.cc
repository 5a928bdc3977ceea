#include "server/openai/answer.h"

#include <utility>

#include "server/json_writer.h"
#include "server/openai/logprobs.h"
#include "server/utf8.h"

namespace heddle::server {
namespace {

constexpr std::string_view kFramePrefix = "data: ";
constexpr std::string_view kFrameEnd = "\n\n";
constexpr std::string_view kDoneFrame = "data: [DONE]\n\n";

absl::Status CancelledError() {
  return absl::UnavailableError("the server ended this request before it was finished");
}

}  // namespace

struct Answer::State {
  std::unique_ptr<Choice> choice;
  bool begun = false;
  bool ended = false;
  std::string_view finish_reason;
  ChoiceDelta whole;  // of an answer that is not streamed
};

Answer::Answer(const ApiRequest* request, const ServedModel* model, const TextCodec* codec,
               Identity identity)
    : request_(request),
      model_(model),
      codec_(codec),
      identity_(std::move(identity)),
      choices_(request->num_choices()),
      prompt_scores_(request->generations.size()),
      prompt_seen_(request->generations.size(), false),
      open_choices_(request->num_choices()) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    size_t prompt = i / static_cast<size_t>(request->n);
    Choice::Options options;
    options.stop = request->stop;
    options.stop_tokens = request->generations[prompt].stop_tokens;
    options.min_tokens = request->min_tokens;
    options.keep_tokens = request->logprobs;
    if (request->echo) options.text_offset = CountCodePoints(request->prompt_texts[prompt]);
    choices_[i].choice = std::make_unique<Choice>(codec->NewStream(/*after_text=*/true), options);
  }
  for (const GenerationRequest& generation : request->generations) {
    usage_.prompt_tokens += static_cast<int64_t>(generation.prompt.size());
  }
  JsonWriter json(&chunk_head_);
  json.BeginObject();
  WriteHead(ObjectName(/*chunk=*/true), &json);
}

Answer::~Answer() = default;

void Answer::Take(size_t prompt, GenerationEvent event, Output* output) {
  if (done()) return;
  if (!prompt_seen_[prompt] && event.cached_tokens > 0) usage_.cached_tokens += event.cached_tokens;
  prompt_seen_[prompt] = true;
  TakeScores(prompt, std::move(event.prompt_scores));
  size_t index = prompt * static_cast<size_t>(request_->n) + static_cast<size_t>(event.branch);
  State& state = choices_[index];
  if (state.ended) return;
  if (event.finished && event.reason == FinishReason::kError) {
    error_ = event.error.ok() ? absl::InternalError("the engine failed") : event.error;
    return;
  }
  if (event.finished && event.reason == FinishReason::kCancelled) {
    error_ = CancelledError();
    return;
  }
  if (event.tokens.empty() && !event.finished) return;
  BeginChoice(index, &output->frames);
  ChoiceDelta delta;
  int32_t before = state.choice->generated_tokens();
  bool stopped = state.choice->Push(std::move(event.tokens), &delta);
  usage_.completion_tokens += state.choice->generated_tokens() - before;
  if (event.finished && !stopped) state.choice->Finish(&delta);
  Deliver(index, std::move(delta), &output->frames);
  if (stopped && !event.finished) output->stopped_branches.push_back(event.branch);
  if (!stopped && !event.finished) return;
  bool length = event.reason == FinishReason::kLength && !state.choice->stopped();
  EndChoice(index, length ? "length" : "stop", &output->frames);
}

// The first chunk of a choice: its role, or the echoed prompt.
size_t Answer::BeginChoice(size_t index, std::string* frames) {
  State& state = choices_[index];
  if (state.begun) return index;
  state.begun = true;
  if (request_->echo) {
    Deliver(index, EchoDelta(index / static_cast<size_t>(request_->n)), frames);
  } else if (chat() && request_->stream) {
    WriteChunk(index, nullptr, "", /*role=*/true, frames);
  }
  return index;
}

void Answer::TakeScores(size_t prompt, std::vector<engine::SampledToken> scores) {
  auto& all = prompt_scores_[prompt];
  all.insert(all.end(), std::make_move_iterator(scores.begin()),
             std::make_move_iterator(scores.end()));
}

ChoiceDelta Answer::EchoDelta(size_t prompt) const {
  ChoiceDelta delta;
  delta.text = request_->prompt_texts[prompt];
  if (!request_->logprobs) return delta;
  const auto& scores = prompt_scores_[prompt];  // [prompt tokens - 1]: the first has no past
  std::unique_ptr<TokenStream> stream = codec_->NewStream(/*after_text=*/false);
  std::string piece;
  size_t offset = 0;
  const std::vector<TokenId>& tokens = request_->generations[prompt].prompt;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ChoiceToken token{tokens[i], false, 0, {}, offset};
    if (i > 0 && i <= scores.size()) {
      token.has_logprob = true;
      token.logprob = scores[i - 1].logprob;
      token.top = scores[i - 1].top;
    }
    delta.tokens.push_back(std::move(token));
    piece.clear();
    stream->Push(tokens[i], &piece);
    offset += CountCodePoints(piece);
  }
  return delta;
}

void Answer::Deliver(size_t index, ChoiceDelta delta, std::string* frames) {
  if (delta.empty()) return;
  if (request_->stream) {
    WriteChunk(index, &delta, "", /*role=*/false, frames);
    return;
  }
  ChoiceDelta& whole = choices_[index].whole;
  whole.text.append(delta.text);
  whole.tokens.insert(whole.tokens.end(), std::make_move_iterator(delta.tokens.begin()),
                      std::make_move_iterator(delta.tokens.end()));
}

void Answer::EndChoice(size_t index, std::string_view reason, std::string* frames) {
  choices_[index].ended = true;
  choices_[index].finish_reason = reason;
  --open_choices_;
  if (!request_->stream) return;
  WriteChunk(index, nullptr, reason, /*role=*/false, frames);
  if (open_choices_ > 0) return;
  if (request_->include_usage) {
    frames->append(kFramePrefix);
    frames->append(chunk_head_);
    frames->append(",\"choices\":[],\"usage\":");
    JsonWriter json(frames);
    WriteUsage(&json);
    frames->append("}");
    frames->append(kFrameEnd);
  }
  frames->append(kDoneFrame);
}

void Answer::WriteChunk(size_t index, const ChoiceDelta* delta, std::string_view finish_reason,
                        bool role, std::string* frames) const {
  frames->append(kFramePrefix);
  frames->append(chunk_head_);
  frames->append(",\"choices\":[");
  JsonWriter json(frames);
  json.BeginObject().Member("index", index);
  if (chat()) {
    json.Key("delta").BeginObject();
    if (role) json.Member("role", "assistant").Member("content", "");
    if (delta != nullptr) json.Member("content", delta->text);
    json.EndObject();
  } else {
    json.Member("text", delta == nullptr ? std::string_view() : std::string_view(delta->text));
  }
  json.Key("logprobs");
  if (delta != nullptr && request_->logprobs) {
    WriteLogprobs(delta->tokens, &json);
  } else {
    json.Null();
  }
  json.Key("finish_reason");
  finish_reason.empty() ? json.Null() : json.String(finish_reason);
  json.EndObject();
  frames->append(request_->include_usage ? "],\"usage\":null}" : "]}");
  frames->append(kFrameEnd);
}

std::string Answer::Body() const {
  std::string body;
  JsonWriter json(&body);
  json.BeginObject();
  WriteHead(ObjectName(/*chunk=*/false), &json);
  json.Key("choices").BeginArray();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const State& state = choices_[i];
    json.BeginObject().Member("index", i);
    if (chat()) {
      json.Key("message").BeginObject().Member("role", "assistant");
      json.Member("content", state.whole.text).NullMember("refusal").EndObject();
    } else {
      json.Member("text", state.whole.text);
    }
    json.Key("logprobs");
    request_->logprobs ? WriteLogprobs(state.whole.tokens, &json) : void(json.Null());
    json.Member("finish_reason", state.finish_reason).EndObject();
  }
  json.EndArray().Key("usage");
  WriteUsage(&json);
  json.EndObject();
  return body;
}

void Answer::WriteHead(std::string_view object, JsonWriter* json) const {
  json->Member("id", identity_.id).Member("object", object).Member("created", identity_.created);
  json->Member("model", model_->id).Member("system_fingerprint", model_->fingerprint);
}

void Answer::WriteUsage(JsonWriter* json) const {
  json->BeginObject().Member("prompt_tokens", usage_.prompt_tokens);
  json->Member("completion_tokens", usage_.completion_tokens);
  json->Member("total_tokens", usage_.prompt_tokens + usage_.completion_tokens);
  json->Key("prompt_tokens_details").BeginObject();
  json->Member("cached_tokens", usage_.cached_tokens).EndObject();
  json->Key("completion_tokens_details").BeginObject().Member("reasoning_tokens", 0).EndObject();
  json->EndObject();
}

void Answer::WriteLogprobs(const std::vector<ChoiceToken>& tokens, JsonWriter* json) const {
  chat() ? WriteChatLogprobs(tokens, request_->top_logprobs, *codec_, json)
         : WriteCompletionLogprobs(tokens, request_->top_logprobs, *codec_, json);
}

std::string_view Answer::ObjectName(bool chunk) const {
  if (!chat()) return "text_completion";
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

std::string ErrorFrame(const ApiError& error) {
  std::string frame(kFramePrefix);
  frame.append(ErrorJson(error));
  frame.append(kFrameEnd);
  return frame;
}

}  // namespace heddle::server
