#include "engine/family/encoder_classes.h"

#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

HeadLayer Matrix(int32_t in, int32_t out, const std::string& name,
                 HeadActivation activation = HeadActivation::kNone) {
  return {.in = in,
          .out = out,
          .weight = name + ".weight",
          .bias = name + ".bias",
          .activation = activation};
}

}  // namespace

absl::Status BertClasses(const JsonSource&, std::string_view prefix, int32_t hidden,
                         int32_t n_labels, PooledOutput* output) {
  output->pooling = Pooling::kFirst;
  output->layers = {
      Matrix(hidden, hidden, base::StrCat(prefix, "pooler.dense"), HeadActivation::kTanh),
      Matrix(hidden, n_labels, "classifier")};
  return absl::OkStatus();
}

absl::Status RobertaClasses(const JsonSource&, std::string_view, int32_t hidden, int32_t n_labels,
                            PooledOutput* output) {
  output->pooling = Pooling::kFirst;
  output->layers = {Matrix(hidden, hidden, "classifier.dense", HeadActivation::kTanh),
                    Matrix(hidden, n_labels, "classifier.out_proj")};
  return absl::OkStatus();
}

absl::Status DistilBertClasses(const JsonSource&, std::string_view, int32_t hidden,
                               int32_t n_labels, PooledOutput* output) {
  output->pooling = Pooling::kFirst;
  output->layers = {Matrix(hidden, hidden, "pre_classifier", HeadActivation::kRelu),
                    Matrix(hidden, n_labels, "classifier")};
  return absl::OkStatus();
}

absl::Status ModernBertClasses(const JsonSource& config, std::string_view, int32_t hidden,
                               int32_t n_labels, PooledOutput* output) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string pooling, config.StringOr("classifier_pooling", "cls"));
  HEDDLE_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr("classifier_bias", false));
  HEDDLE_ASSIGN_OR_RETURN(const bool norm_bias, config.BoolOr("norm_bias", false));
  HEDDLE_ASSIGN_OR_RETURN(const double eps, config.PositiveOr("norm_eps", 1.0, 1e-5));
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, config.StringOr("classifier_activation", "gelu"));
  if (name != "gelu") {
    return config.Unsupported("classifier_activation", base::Quote(name), "supported is gelu");
  }
  if (pooling != "cls" && pooling != "mean") {
    return config.Unsupported("classifier_pooling", base::Quote(pooling),
                              "supported are cls and mean");
  }
  output->pooling = pooling == "cls" ? Pooling::kFirst : Pooling::kMean;
  HeadLayer dense = Matrix(hidden, hidden, "head.dense", HeadActivation::kGelu);
  if (!has_bias) dense.bias.clear();
  HeadLayer norm = Matrix(hidden, hidden, "head.norm");
  norm.is_norm = true;
  norm.norm_eps = static_cast<float>(eps);
  if (!norm_bias) norm.bias.clear();
  output->layers = {std::move(dense), std::move(norm), Matrix(hidden, n_labels, "classifier")};
  return absl::OkStatus();
}

absl::Status EuroBertClasses(const JsonSource& config, std::string_view, int32_t hidden,
                             int32_t n_labels, PooledOutput* output) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string pooling, config.StringOr("classifier_pooling", "late"));
  if (pooling != "bos" && pooling != "mean") {
    return config.Unsupported("classifier_pooling", base::Quote(pooling),
                              "supported are bos and mean");
  }
  output->pooling = pooling == "bos" ? Pooling::kFirst : Pooling::kMean;
  output->layers = {Matrix(hidden, hidden, "dense", HeadActivation::kGelu),
                    Matrix(hidden, n_labels, "classifier")};
  return absl::OkStatus();
}

}  // namespace heddle::engine
