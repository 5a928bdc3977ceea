#include "server/openai/answer.h"

#include <utility>

#include "base/message.h"
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
  // With tools only:
  std::unique_ptr<HermesToolParser> parser;
  std::vector<ToolCall> calls;
  std::vector<ChoiceToken> waiting;  // tokens whose text the parser holds
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
    if (request->tool_format == ToolFormat::kHermes) {
      choices_[i].parser = std::make_unique<HermesToolParser>();
    }
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
  stopped |= TakeCalls(index, event.finished || stopped, &delta, &output->frames);
  Deliver(index, std::move(delta), &output->frames);
  if (stopped && !event.finished) output->stopped_branches.push_back(event.branch);
  if (!stopped && !event.finished) return;
  bool length = event.reason == FinishReason::kLength && !stopped && !state.choice->stopped();
  std::string_view reason = state.calls.empty() ? "stop" : "tool_calls";
  EndChoice(index, length ? "length" : reason, &output->frames);
}

// The first chunk of a choice: its role, or the echoed prompt.
void Answer::BeginChoice(size_t index, std::string* frames) {
  State& state = choices_[index];
  if (state.begun) return;
  state.begun = true;
  if (request_->echo) {
    Deliver(index, EchoDelta(index / static_cast<size_t>(request_->n)), frames);
  } else if (chat() && request_->stream) {
    WriteChunk(index, R"({"role":"assistant","content":""})", nullptr, "", frames);
  }
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

// Takes the calls out of the text of `delta`. True: the one call that was allowed is there, and the
// choice ends.
bool Answer::TakeCalls(size_t index, bool at_end, ChoiceDelta* delta, std::string* frames) {
  State& state = choices_[index];
  if (state.parser == nullptr) return false;
  std::string content;
  std::vector<ToolCall> calls;
  state.parser->Push(delta->text, &content, &calls);
  if (at_end) state.parser->Finish(&content);
  delta->text = std::move(content);
  state.waiting.insert(state.waiting.end(), std::make_move_iterator(delta->tokens.begin()),
                       std::make_move_iterator(delta->tokens.end()));
  delta->tokens.clear();
  if (at_end || !delta->text.empty()) std::swap(delta->tokens, state.waiting);
  for (ToolCall& call : calls) {
    DeliverCall(index, std::move(call), frames);
    if (!request_->parallel_tool_calls) return true;
  }
  return false;
}

void Answer::Deliver(size_t index, ChoiceDelta delta, std::string* frames) {
  if (delta.empty()) return;
  if (request_->stream) {
    WriteChunk(index, ContentPayload(delta.text), &delta.tokens, "", frames);
    return;
  }
  ChoiceDelta& whole = choices_[index].whole;
  whole.text.append(delta.text);
  whole.tokens.insert(whole.tokens.end(), std::make_move_iterator(delta.tokens.begin()),
                      std::make_move_iterator(delta.tokens.end()));
}

// Streamed in two chunks: id, type and name once, then the arguments.
void Answer::DeliverCall(size_t index, ToolCall call, std::string* frames) {
  std::vector<ToolCall>& calls = choices_[index].calls;
  size_t number = calls.size();
  calls.push_back(std::move(call));
  if (!request_->stream) return;
  std::string begin;
  JsonWriter json(&begin);
  json.BeginObject().Key("tool_calls").BeginArray().BeginObject().Member("index", number);
  json.Member("id", CallId(index, number)).Member("type", "function");
  json.Key("function").BeginObject();
  json.Member("name", calls.back().name).Member("arguments", "").EndObject();
  json.EndObject().EndArray().EndObject();
  WriteChunk(index, begin, nullptr, "", frames);
  std::string rest;
  JsonWriter more(&rest);
  more.BeginObject().Key("tool_calls").BeginArray().BeginObject().Member("index", number);
  more.Key("function").BeginObject().Member("arguments", calls.back().arguments).EndObject();
  more.EndObject().EndArray().EndObject();
  WriteChunk(index, rest, nullptr, "", frames);
}

void Answer::EndChoice(size_t index, std::string_view reason, std::string* frames) {
  choices_[index].ended = true;
  choices_[index].finish_reason = reason;
  --open_choices_;
  if (!request_->stream) return;
  WriteChunk(index, chat() ? "{}" : "\"\"", nullptr, reason, frames);
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

// `payload` is the JSON of "delta" (chat) or of "text".
void Answer::WriteChunk(size_t index, std::string_view payload,
                        const std::vector<ChoiceToken>* tokens, std::string_view finish_reason,
                        std::string* frames) const {
  frames->append(kFramePrefix);
  frames->append(chunk_head_);
  frames->append(",\"choices\":[");
  JsonWriter json(frames);
  json.BeginObject().Member("index", index).Key(chat() ? "delta" : "text").Raw(payload);
  json.Key("logprobs");
  if (tokens != nullptr && request_->logprobs) {
    WriteLogprobs(*tokens, &json);
  } else {
    json.Null();
  }
  json.Key("finish_reason");
  finish_reason.empty() ? json.Null() : json.String(finish_reason);
  json.EndObject();
  frames->append(request_->include_usage ? "],\"usage\":null}" : "]}");
  frames->append(kFrameEnd);
}

std::string Answer::ContentPayload(std::string_view text) const {
  std::string payload;
  JsonWriter json(&payload);
  chat() ? json.BeginObject().Member("content", text).EndObject() : json.String(text);
  return payload;
}

// Unique among all answers as far as their own ids are.
std::string Answer::CallId(size_t index, size_t call) const {
  std::string_view id = identity_.id;
  return base::StrCat("call_", id.substr(id.find('-') + 1), "_", index, "_", call);
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
      WriteMessage(i, &json);
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

// Content is null where there are only calls; what is empty is left out.
void Answer::WriteMessage(size_t index, JsonWriter* json) const {
  const State& state = choices_[index];
  json->Key("message").BeginObject().Member("role", "assistant").Key("content");
  bool only_calls = state.whole.text.empty() && !state.calls.empty();
  only_calls ? json->Null() : json->String(state.whole.text);
  json->NullMember("refusal");
  if (!state.calls.empty()) {
    json->Key("tool_calls").BeginArray();
    for (size_t i = 0; i < state.calls.size(); ++i) {
      json->BeginObject().Member("id", CallId(index, i)).Member("type", "function");
      json->Key("function").BeginObject().Member("name", state.calls[i].name);
      json->Member("arguments", state.calls[i].arguments).EndObject().EndObject();
    }
    json->EndArray();
  }
  json->EndObject();
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
