// Makes answers of pooled states: embeddings, scores, rankings and classes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/message.h"
#include "server/json_writer.h"
#include "server/openai/embeddings.h"

namespace heddle::server {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 is of little-endian floats");

// Scales to length 1.
void Normalize(std::vector<float>* values) {
  double square = 0;
  for (float value : *values) square += static_cast<double>(value) * value;
  double scale = square > 0 ? 1.0 / std::sqrt(square) : 0.0;
  for (float& value : *values) value = static_cast<float>(value * scale);
}

float Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(sum);
}

void WriteUsage(const EmbeddingRequest& request, JsonWriter* json) {
  size_t tokens = 0;
  for (const GenerationRequest& generation : request.generations) {
    tokens += generation.prompt.size();
  }
  json->Key("usage").BeginObject().Member("prompt_tokens", tokens);
  json->Member("total_tokens", tokens).EndObject();
}

void WriteEmbeddings(const EmbeddingRequest& request,
                     const std::vector<std::vector<float>>& embeddings, JsonWriter* json) {
  json->Member("object", "list").Key("data").BeginArray();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    json->BeginObject().Member("object", "embedding").Member("index", i).Key("embedding");
    WriteEmbedding(embeddings[i], request.base64, json);
    json->EndObject();
  }
  json->EndArray().Member("model", request.model.shown);
}

void WriteScores(const EmbeddingRequest& request, const std::vector<std::vector<float>>& embeddings,
                 JsonWriter* json) {
  json->Member("object", "list").Member("model", request.model.shown).Key("data").BeginArray();
  const std::vector<float> scores = PairScores(request, embeddings);
  for (size_t i = 0; i < scores.size(); ++i) {
    json->BeginObject().Member("index", i).Member("object", "score");
    json->Key("score").Number(scores[i]).EndObject();
  }
  json->EndArray();
}

void WriteRanking(const EmbeddingRequest& request,
                  const std::vector<std::vector<float>>& embeddings, JsonWriter* json) {
  const std::vector<float> scores = PairScores(request, embeddings);
  std::vector<size_t> order = BestFirst(scores);
  if (request.top_n > 0 && request.top_n < order.size()) order.resize(request.top_n);
  json->Member("model", request.model.shown).Key("results").BeginArray();
  for (size_t index : order) {
    json->BeginObject().Member("index", index).Key("relevance_score").Number(scores[index]);
    if (!request.documents.empty()) {
      json->Key("document").BeginObject().Member("text", request.documents[index]).EndObject();
    }
    json->EndObject();
  }
  json->EndArray();
}

void WriteClasses(const EmbeddingRequest& request, const std::vector<std::vector<float>>& scores,
                  JsonWriter* json) {
  const std::vector<std::string>& labels = request.head->output().labels;
  json->Member("object", "list").Member("model", request.model.shown).Key("data").BeginArray();
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto best = std::max_element(scores[i].begin(), scores[i].end()) - scores[i].begin();
    json->BeginObject().Member("index", i).Member("label", labels[static_cast<size_t>(best)]);
    json->Key("probs").BeginArray();
    for (const float score : scores[i]) json->Number(score);
    json->EndArray().Member("num_classes", labels.size()).EndObject();
  }
  json->EndArray();
}

}  // namespace

std::vector<float> PairScores(const EmbeddingRequest& request,
                              const std::vector<std::vector<float>>& values) {
  std::vector<float> scores;
  if (request.reads_pairs) {
    for (const std::vector<float>& classes : values) scores.push_back(classes.front());
    return scores;
  }
  for (size_t i = request.num_queries; i < values.size(); ++i) {
    const auto& query = values[request.num_queries == 1 ? 0 : i - request.num_queries];
    scores.push_back(Cosine(query, values[i]));
  }
  return scores;
}

std::vector<size_t> BestFirst(const std::vector<float>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&scores](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

void WriteEmbedding(const std::vector<float>& values, bool base64, JsonWriter* json) {
  if (base64) {
    std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
    json->String(absl::Base64Escape(base::AbslView(bytes)));
    return;
  }
  json->BeginArray();
  for (float value : values) json->Number(value);
  json->EndArray();
}

void FinishPooled(const EmbeddingRequest& request, std::vector<float>* values) {
  if (request.head != nullptr) *values = request.head->Apply(std::move(*values));
  if (request.reads_pairs || request.task == EmbeddingTask::kClassify) {
    if (request.use_activation) request.head->Score(values);
    return;
  }
  const auto size = static_cast<size_t>(request.dimensions);
  const bool is_cut = values->size() > size;
  if (is_cut) values->resize(size);
  const bool usual = request.head == nullptr || request.head->output().normalize || is_cut;
  const bool is_embedding = request.task == EmbeddingTask::kEmbed;
  if (!is_embedding || request.normalize.value_or(usual)) Normalize(values);
}

std::string WriteOpenAiEmbeddings(const EmbeddingRequest& request,
                                  const std::vector<std::vector<float>>& embeddings,
                                  const EmbeddingStamp& stamp) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  switch (request.task) {
    case EmbeddingTask::kEmbed:
      WriteEmbeddings(request, embeddings, &json);
      break;
    case EmbeddingTask::kScore:
      json.Member("id", base::StrCat("score-", stamp.id)).Member("created", stamp.created);
      WriteScores(request, embeddings, &json);
      break;
    case EmbeddingTask::kRerank:
      json.Member("id", base::StrCat("rerank-", stamp.id));
      WriteRanking(request, embeddings, &json);
      break;
    case EmbeddingTask::kClassify:
      json.Member("id", base::StrCat("classify-", stamp.id)).Member("created", stamp.created);
      WriteClasses(request, embeddings, &json);
      break;
  }
  WriteUsage(request, &json);
  json.EndObject();
  return out;
}

}  // namespace heddle::server
