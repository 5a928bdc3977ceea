#include "server/llamacpp/llama_format.h"

#include <algorithm>
#include <utility>

#include "server/answer/logprobs.h"
#include "server/json_writer.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

std::string_view StopType(const ChoiceResult& result) {
  if (result.reason == EndReason::kLength) return "limit";
  return result.stop_string.empty() ? "eos" : "word";
}

void WriteSpeed(std::string_view name, size_t count, double seconds, JsonWriter* json) {
  const double milliseconds = std::max(0.0, seconds) * 1e3;
  const auto tokens = static_cast<double>(count);
  const std::string prefix(name);
  json->Member(prefix + "_n", count).Key(prefix + "_ms").Number(milliseconds);
  json->Key(prefix + "_per_token_ms").Number(count == 0 ? 0.0 : milliseconds / tokens);
  json->Key(prefix + "_per_second").Number(milliseconds == 0 ? 0.0 : 1e3 * tokens / milliseconds);
}

}  // namespace

const GenerationRequest& LlamaFormat::RequestOf(size_t index) const {
  return request_->generations[index / static_cast<size_t>(request_->n)];
}

void LlamaFormat::WriteIds(std::span<const TokenId> ids, JsonWriter* json) const {
  json->Key("tokens").BeginArray();
  if (return_tokens_) {
    for (TokenId id : ids) json->Int(id);
  }
  json->EndArray();
}

void LlamaFormat::WriteProbabilities(std::span<const ChoiceToken> tokens, JsonWriter* json) const {
  if (!request_->logprobs || tokens.empty()) return;
  json->Key("completion_probabilities");
  WriteTokenLogprobs(tokens, request_->top_logprobs, *codec_, json);
}

void LlamaFormat::TakeTokenIds(size_t index, std::span<const TokenId> ids) {
  num_tokens_[index] += ids.size();
  if (return_tokens_) {
    unsent_ids_[index].insert(unsent_ids_[index].end(), ids.begin(), ids.end());
  }
}

void LlamaFormat::WritePiece(size_t index, const OutputPiece& piece,
                             std::span<const ChoiceToken> tokens, std::string* frames) {
  frames->append("data: ");
  JsonWriter json(frames);
  json.BeginObject().Member("index", index).Member("content", piece.text);
  WriteIds(std::exchange(unsent_ids_[index], {}), &json);
  json.Key("stop").Bool(false).Member("id_slot", -1);
  json.Member("tokens_predicted", num_tokens_[index]);
  json.Member("tokens_evaluated", RequestOf(index).prompt.size());
  WriteProbabilities(tokens, &json);
  json.EndObject();
  frames->append("\n\n");
}

void LlamaFormat::EndChoice(size_t index, const ChoiceResult& result, std::string* frames) {
  frames->append("data: ");
  JsonWriter json(frames);
  json.BeginObject().Member("index", index).Member("content", "");
  WriteIds(std::exchange(unsent_ids_[index], {}), &json);
  WriteEnd(index, result, num_tokens_[index], &json);
  json.EndObject();
  frames->append("\n\n");
}

// The last object of a choice ends it; nothing follows the last choice.
void LlamaFormat::End(std::span<const ChoiceResult>, const Usage&, std::string*) {}

void LlamaFormat::WriteSettings(size_t index, JsonWriter* json) const {
  const GenerationRequest& request = RequestOf(index);
  const engine::SamplingParams& sampling = request.sampling;
  json->Key("generation_settings").BeginObject().Member("n_predict", request.max_tokens);
  json->Member("seed", sampling.seed).Key("temperature").Number(sampling.temperature);
  json->Member("top_k", sampling.top_k).Key("top_p").Number(sampling.top_p);
  json->Key("min_p").Number(sampling.min_p).Key("typical_p").Number(sampling.typical_p);
  json->Key("repeat_penalty").Number(sampling.repetition_penalty);
  json->Key("presence_penalty").Number(sampling.presence_penalty);
  json->Key("frequency_penalty").Number(sampling.frequency_penalty);
  json->Key("stop").BeginArray();
  for (const std::string& stop : request_->stop) json->String(stop);
  json->EndArray().Key("stream").Bool(request_->stream).EndObject();
}

void LlamaFormat::WriteTimings(size_t index, size_t num_tokens, JsonWriter* json) const {
  const double queued = std::max(0.0, times_.queued);
  const double first = std::max(queued, times_.first_token);
  json->Key("timings").BeginObject();
  WriteSpeed("prompt", RequestOf(index).prompt.size(), first - queued, json);
  WriteSpeed("predicted", num_tokens, times_.now - first, json);
  json->EndObject();
}

void LlamaFormat::WriteEnd(size_t index, const ChoiceResult& result, size_t num_tokens,
                           JsonWriter* json) const {
  const std::vector<TokenId>& prompt = RequestOf(index).prompt;
  json->Member("id_slot", -1).Key("stop").Bool(true).Member("model", request_->model.shown);
  json->Member("tokens_predicted", num_tokens).Member("tokens_evaluated", prompt.size());
  WriteSettings(index, json);
  json->Member("prompt", codec_->Decode(prompt, /*skip_special=*/false));
  json->Key("truncated").Bool(false).Member("stop_type", StopType(result));
  json->Member("stopping_word", result.stop_string);
  json->Member("tokens_cached", prompt.size() + num_tokens);
  WriteTimings(index, num_tokens, json);
}

// One object, or a list of them where there are several prompts or answers.
std::string LlamaFormat::Body(std::span<const ChoiceResult> choices, const Usage&) const {
  std::string body;
  JsonWriter json(&body);
  if (choices.size() > 1) json.BeginArray();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceResult& result = choices[i];
    json.BeginObject().Member("index", i).Member("content", result.Text(Kind::kContent));
    WriteIds(result.token_ids, &json);
    WriteEnd(i, result, result.token_ids.size(), &json);
    WriteProbabilities(result.tokens, &json);
    json.EndObject();
  }
  if (choices.size() > 1) json.EndArray();
  return body;
}

std::string LlamaFormat::ErrorFrames(const ApiError& error) {
  return "data: " + ErrorJson(error) + "\n\n";
}

}  // namespace heddle::server
