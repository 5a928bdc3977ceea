#include "server/tei/tei_routes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"
#include "server/tei/tei_fields.h"

namespace heddle::server {
namespace {

std::string EmbedBody(const EmbeddingRequest&, const std::vector<std::vector<float>>& embeddings,
                      const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  for (const std::vector<float>& values : embeddings) {
    json.BeginArray();
    for (const float value : values) json.Number(value);
    json.EndArray();
  }
  json.EndArray();
  return out;
}

std::string SimilarityBody(const EmbeddingRequest& request,
                           const std::vector<std::vector<float>>& embeddings,
                           const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  for (const float score : PairScores(request, embeddings)) json.Number(score);
  json.EndArray();
  return out;
}

std::string RankingBody(const EmbeddingRequest& request,
                        const std::vector<std::vector<float>>& embeddings, const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  const std::vector<float> scores = PairScores(request, embeddings);
  for (const size_t index : BestFirst(scores)) {
    json.BeginObject().Member("index", index).Key("score").Number(scores[index]);
    if (!request.documents.empty()) json.Member("text", request.documents[index]);
    json.EndObject();
  }
  json.EndArray();
  return out;
}

void WriteClasses(const EmbeddingRequest& request, const std::vector<float>& scores,
                  JsonWriter* json) {
  const std::vector<std::string>& labels = request.head->output().labels;
  std::vector<size_t> order = BestFirst(scores);
  if (request.top_n > 0 && request.top_n < order.size()) order.resize(request.top_n);
  json->BeginArray();
  for (const size_t index : order) {
    json->BeginObject().Member("label", labels[index]).Key("score").Number(scores[index]);
    json->EndObject();
  }
  json->EndArray();
}

std::string OnePredictionBody(const EmbeddingRequest& request,
                              const std::vector<std::vector<float>>& scores,
                              const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  WriteClasses(request, scores.front(), &json);
  return out;
}

std::string PredictionsBody(const EmbeddingRequest& request,
                            const std::vector<std::vector<float>>& scores, const EmbeddingStamp&) {
  std::string out;
  JsonWriter json(&out);
  json.BeginArray();
  for (const std::vector<float>& classes : scores) WriteClasses(request, classes, &json);
  json.EndArray();
  return out;
}

// Texts lose their end (server/openai/embeddings.cc), whatever the model.
absl::Status CheckDirection(const std::string* direction) {
  if (direction == nullptr || absl::AsciiStrToLower(*direction) == "right") return absl::OkStatus();
  return FieldError(
      "truncation_direction",
      base::StrCat("'truncation_direction' must be Right, found ", base::Quote(*direction)));
}

template <const auto& kTable>
absl::StatusOr<RequestFields<kTable>> ReadBody(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(RequestFields<kTable> fields, CheckBody<kTable>(json, {}, context));
  HEDDLE_RETURN_IF_ERROR(CheckDirection(fields.template Text<"truncation_direction">()));
  return fields;
}

// The request that `body` makes of OpenAI's route; errors name `names` (second).
absl::StatusOr<EmbeddingRequest> Rewritten(EmbeddingTask task, Json body, bool truncates,
                                           std::span<const Renamed> names, EmbeddingWriter write,
                                           const RequestContext& context) {
  if (truncates) body["truncate_prompt_tokens"] = -1;
  absl::StatusOr<EmbeddingRequest> request = ReadEmbeddingRequest(task, body, context);
  if (!request.ok()) return RenameFields(request.status(), names);
  request->write = write;
  return request;
}

absl::StatusOr<EmbeddingRequest> ReadEmbed(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTeiEmbed> fields,
                          ReadBody<fields::kTeiEmbed>(json, context));
  constexpr Renamed kNames[] = {{"input", "inputs"}};
  Json body = {{"input", *fields.Value<"inputs">()}};
  if (const Json* dimensions = fields.Value<"dimensions">()) body["dimensions"] = *dimensions;
  if (const Json* prompt = fields.Value<"prompt_name">()) body["prompt_name"] = *prompt;
  HEDDLE_ASSIGN_OR_RETURN(EmbeddingRequest request,
                          Rewritten(EmbeddingTask::kEmbed, std::move(body),
                                    fields.Bool<"truncate">(false), kNames, EmbedBody, context));
  request.normalize = fields.Bool<"normalize">(true);
  return request;
}

// Several texts are arrays of one each: two in one array would be a pair. `nested`: one text, too,
// is answered with a list of lists.
absl::StatusOr<EmbeddingRequest> ReadPredict(const Json& json, bool nested,
                                             const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTeiPredict> fields,
                          ReadBody<fields::kTeiPredict>(json, context));
  const Json& inputs = *fields.Value<"inputs">();
  const bool is_batch = inputs.is_array() && !inputs.empty() && inputs.front().is_array();
  Json texts = Json::array();
  for (const Json& entry : inputs.is_array() ? inputs : Json::array({inputs})) {
    const bool is_alone = is_batch && entry.is_array() && entry.size() == 1;
    texts.push_back(is_alone ? entry.front() : entry);
    if (!texts.back().is_string() || (!is_batch && texts.size() > 1)) {
      return FieldError("inputs",
                        "'inputs' must be a string, or arrays of one string each: pairs are for "
                        "/rerank and /v1/score");
    }
  }
  const std::string* function = fields.Text<"function_to_apply">();
  const bool is_raw =
      fields.Bool<"raw_scores">(false) || (function != nullptr && *function == "none");
  constexpr Renamed kNames[] = {{"input", "inputs"}};
  HEDDLE_ASSIGN_OR_RETURN(
      EmbeddingRequest request,
      Rewritten(EmbeddingTask::kClassify, {{"input", texts}, {"use_activation", !is_raw}},
                fields.Bool<"truncate">(false), kNames,
                is_batch || nested ? PredictionsBody : OnePredictionBody, context));
  request.top_n = static_cast<size_t>(fields.Int<"top_k">(0));
  return request;
}

absl::StatusOr<EmbeddingRequest> ReadSimilarity(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTeiSimilarity> fields,
                          CheckBody<fields::kTeiSimilarity>(json, {}, context));
  const auto inputs = fields.Object<"inputs", fields::kTeiSentences>();
  constexpr Renamed kNames[] = {{"text_1", "inputs.source_sentence"},
                                {"text_2", "inputs.sentences"}};
  return Rewritten(
      EmbeddingTask::kScore,
      {{"text_1", *inputs->Value<"source_sentence">()}, {"text_2", *inputs->Value<"sentences">()}},
      /*truncates=*/false, kNames, SimilarityBody, context);
}

absl::StatusOr<EmbeddingRequest> ReadRerank(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kTeiRerank> fields,
                          ReadBody<fields::kTeiRerank>(json, context));
  constexpr Renamed kNames[] = {{"documents", "texts"}};
  return Rewritten(EmbeddingTask::kRerank,
                   {{"query", *fields.Value<"query">()},
                    {"documents", *fields.Value<"texts">()},
                    {"return_documents", fields.Bool<"return_text">(false)},
                    {"use_activation", !fields.Bool<"raw_scores">(false)}},
                   fields.Bool<"truncate">(false), kNames, RankingBody, context);
}

bool Classifies(const RequestContext& context) {
  return context.model->head != nullptr && context.model->head->output().is_classifier();
}

// Clients of huggingface_hub put some of the fields inside, and read a list of lists of classes.
Json WithParameters(Json json) {
  const Json* found = Find(json, "parameters");
  if (found == nullptr || !found->is_object()) return json;
  const Json parameters = *found;
  json.erase("parameters");
  for (const auto& [name, value] : parameters.items()) json[name] = value;
  return json;
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseTeiEmbed(std::string_view body,
                                               const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  return ReadEmbed(json, context);
}

absl::StatusOr<EmbeddingRequest> ParseTeiPredict(std::string_view body,
                                                 const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  return ReadPredict(json, /*nested=*/false, context);
}

absl::StatusOr<EmbeddingRequest> ParseTeiSimilarity(std::string_view body,
                                                    const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  return ReadSimilarity(json, context);
}

absl::StatusOr<EmbeddingRequest> ParseTeiRoot(std::string_view body,
                                              const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json json, ParseJsonObject(body));
  const Json* inputs = Find(json, "inputs");
  if (inputs != nullptr && inputs->is_object()) return ReadSimilarity(json, context);
  const bool has_parameters = Find(json, "parameters") != nullptr;
  json = WithParameters(std::move(json));
  if (Classifies(context)) return ReadPredict(json, /*nested=*/has_parameters, context);
  return ReadEmbed(json, context);
}

absl::StatusOr<EmbeddingRequest> ParseAnyRerank(std::string_view body,
                                                const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  if (Find(json, "texts") != nullptr && Find(json, "documents") == nullptr) {
    return ReadRerank(json, context);
  }
  return ReadEmbeddingRequest(EmbeddingTask::kRerank, json, context);
}

absl::StatusOr<std::string> TeiInfo(const RequestContext& context) {
  constexpr int64_t kMostTexts = 2048;
  const ServedModel& model = *context.model;
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("model_id", model.id).Member("model_dtype", model.weight_format);
  json.Key("model_type").BeginObject().Key(Classifies(context) ? "classifier" : "embedding");
  json.BeginObject();
  if (Classifies(context)) {
    const std::vector<std::string>& labels = model.head->output().labels;
    json.Key("id2label").BeginObject();
    for (size_t i = 0; i < labels.size(); ++i) json.Member(std::to_string(i), labels[i]);
    json.EndObject();
  } else {
    const bool is_first = model.pooling == engine::Pooling::kFirst;
    const bool is_mean = model.pooling == engine::Pooling::kMean;
    json.Member("pooling", is_first ? "cls" : is_mean ? "mean" : "last_token");
  }
  json.EndObject().EndObject();
  json.Member("max_input_length", int64_t{model.max_context});
  json.Member("max_client_batch_size", kMostTexts).Key("auto_truncate").Bool(false);
  json.EndObject();
  return out;
}

}  // namespace heddle::server
