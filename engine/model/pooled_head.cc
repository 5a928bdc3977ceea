#include "engine/model/pooled_head.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "kernels/dtype.h"

namespace heddle::engine {
namespace {

float Activate(HeadActivation activation, float x) {
  switch (activation) {
    case HeadActivation::kNone:
      return x;
    case HeadActivation::kTanh:
      return std::tanh(x);
    case HeadActivation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    case HeadActivation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case HeadActivation::kRelu:
      return std::max(x, 0.0f);
    case HeadActivation::kSilu:
      return x / (1.0f + std::exp(-x));
    case HeadActivation::kSigmoid:
      break;
  }
  return 1.0f / (1.0f + std::exp(-x));
}

// Adds in so many sums side by side, which a compiler puts into one register.
float Dot(const float* a, const float* b, size_t count) {
  constexpr size_t kLanes = 8;
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(sum);
}

std::vector<float> Linear(const PooledHead::Layer& layer, const std::vector<float>& x) {
  const auto in = static_cast<size_t>(layer.shape.in);
  std::vector<float> y(static_cast<size_t>(layer.shape.out));
  for (size_t row = 0; row < y.size(); ++row) {
    const float sum = Dot(layer.weight.data() + row * in, x.data(), in);
    y[row] = Activate(layer.shape.activation, layer.bias.empty() ? sum : sum + layer.bias[row]);
  }
  return y;
}

void Norm(const PooledHead::Layer& layer, std::vector<float>* x) {
  const auto count = static_cast<double>(x->size());
  const double mean = std::accumulate(x->begin(), x->end(), 0.0) / count;
  double squares = 0;
  for (const float value : *x) squares += (value - mean) * (value - mean);
  const double scale = 1.0 / std::sqrt(squares / count + layer.shape.norm_eps);
  for (size_t i = 0; i < x->size(); ++i) {
    const double normed = ((*x)[i] - mean) * scale * layer.weight[i];
    (*x)[i] = static_cast<float>(layer.bias.empty() ? normed : normed + layer.bias[i]);
  }
}

// The values of a tensor, which has `shape`.
absl::StatusOr<std::vector<float>> Values(const Checkpoint& checkpoint, const std::string& name,
                                          const std::vector<int64_t>& shape) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(
        base::StrCat(checkpoint.path().string(), ": tensor ", base::Quote(name), " is missing"));
  }
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t found =
      std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{1}, std::multiplies<>());
  if (found != count || tensor->shape.empty() || tensor->shape.back() != shape.back()) {
    return absl::InvalidArgumentError(
        base::StrCat(checkpoint.path().string(), ": tensor ", base::Quote(name), " has ", found,
                     " values in rows of ", tensor->shape.empty() ? 1 : tensor->shape.back(),
                     ", expected ", count, " in rows of ", shape.back()));
  }
  if (!tensor->dtype || tensor->quantized != nullptr) return UnsupportedType(checkpoint, *tensor);
  std::vector<float> values(static_cast<size_t>(count));
  const kernels::WeightSource source = SourceOf(*tensor);
  const int64_t row_bytes = kernels::RowBytes(*tensor->dtype, source.cols);
  for (int64_t row = 0; row < source.rows; ++row) {
    kernels::DequantizeRow(*tensor->dtype, tensor->data.data() + row * row_bytes, source.cols,
                           values.data() + row * source.cols);
  }
  return values;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PooledHead>> PooledHead::Load(const Checkpoint& checkpoint,
                                                                   const ModelDescription& model) {
  std::map<std::string, Checkpoint> modules;
  std::vector<Layer> layers;
  for (const HeadLayer& shape : model.pooled->layers) {
    const Checkpoint* from = &checkpoint;
    if (!shape.folder.empty()) {
      auto opened = modules.find(shape.folder);
      if (opened == modules.end()) {
        HEDDLE_ASSIGN_OR_RETURN(Checkpoint files, OpenCheckpoint(checkpoint.path() / shape.folder));
        opened = modules.emplace(shape.folder, std::move(files)).first;
      }
      from = &opened->second;
    }
    Layer layer{.shape = shape, .weight = {}, .bias = {}};
    std::vector<int64_t> wanted = {shape.in};
    if (!shape.is_norm) wanted.insert(wanted.begin(), shape.out);
    HEDDLE_ASSIGN_OR_RETURN(layer.weight, Values(*from, shape.weight, wanted));
    if (!shape.bias.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(layer.bias, Values(*from, shape.bias, {shape.out}));
    }
    layers.push_back(std::move(layer));
  }
  return std::make_shared<const PooledHead>(*model.pooled, std::move(layers), model.spec.hidden);
}

std::vector<float> PooledHead::Apply(std::vector<float> state) const {
  for (const Layer& layer : layers_) {
    if (layer.shape.is_norm) {
      Norm(layer, &state);
    } else {
      state = Linear(layer, state);
    }
  }
  return state;
}

void PooledHead::Score(std::vector<float>* logits) const {
  switch (output_.rule) {
    case ScoreRule::kRaw:
      return;
    case ScoreRule::kSigmoid:
      for (float& logit : *logits) logit = Activate(HeadActivation::kSigmoid, logit);
      return;
    case ScoreRule::kSoftmax:
      break;
  }
  const float highest = *std::max_element(logits->begin(), logits->end());
  double sum = 0;
  for (float& logit : *logits) {
    logit = std::exp(logit - highest);
    sum += logit;
  }
  for (float& logit : *logits) logit = static_cast<float>(logit / sum);
}

}  // namespace heddle::engine
