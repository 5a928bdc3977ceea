// RoPE of config.json, as transformers reads it (modeling_rope_utils.py): `rope_scaling` wins over
// `rope_parameters` where both are there; theta and the rotated part stand in it or beside it.
#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/model/describe.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr double kDefaultTheta = 10000.0;  // transformers' default_theta

absl::StatusOr<std::optional<JsonSource>> FindParameters(const JsonSource& config) {
  for (std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = config.Find(key);
    bool empty = value == nullptr || (value->is_object() && value->empty());
    if (!empty) return config.Object(key);
  }
  return std::optional<JsonSource>();
}

absl::StatusOr<std::string> RopeType(const JsonSource& parameters) {
  if (parameters.Has("rope_type")) return parameters.String("rope_type");
  return parameters.StringOr("type", "default");
}

// A number that may stand in the parameters or beside them.
absl::StatusOr<double> NumberOr(const JsonSource& config, const JsonSource* parameters,
                                std::string_view key, double max, double absent) {
  if (parameters != nullptr && parameters->Has(key)) return parameters->Positive(key, max);
  return config.PositiveOr(key, max, absent);
}

absl::Status ReadOriginalContext(const JsonSource& config, const JsonSource& parameters,
                                 int32_t max_context, RopeSpec* rope) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const JsonSource& source = config.Has(kKey) ? config : parameters;
  HEDDLE_ASSIGN_OR_RETURN(rope->original_max_position,
                          source.DimOr(kKey, kMaxContext, max_context));
  return absl::OkStatus();
}

absl::Status ReadLlama3(const JsonSource& parameters, RopeSpec* rope) {
  HEDDLE_ASSIGN_OR_RETURN(double factor, parameters.Positive("factor", kMaxFactor));
  HEDDLE_ASSIGN_OR_RETURN(double low, parameters.Positive("low_freq_factor", kMaxFactor));
  HEDDLE_ASSIGN_OR_RETURN(double high, parameters.Positive("high_freq_factor", kMaxFactor));
  if (high <= low) {
    return parameters.Error("high_freq_factor", base::StrCat(high),
                            base::StrCat("more than \"low_freq_factor\" (", low, ")"));
  }
  rope->scaling = RopeScaling::kLlama3;
  rope->factor = static_cast<float>(factor);
  rope->low_freq_factor = static_cast<float>(low);
  rope->high_freq_factor = static_cast<float>(high);
  return absl::OkStatus();
}

// Peng et al. 2023, section 3.4: attention gets 0.1 ln(factor) + 1 sharper.
double YarnMagnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

absl::StatusOr<double> YarnAttentionFactor(const JsonSource& parameters, double factor) {
  if (parameters.Has("attention_factor")) {
    return parameters.Positive("attention_factor", kMaxFactor);
  }
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  if (parameters.Has("mscale")) {
    HEDDLE_ASSIGN_OR_RETURN(mscale, parameters.Float("mscale"));
  }
  if (parameters.Has("mscale_all_dim")) {
    HEDDLE_ASSIGN_OR_RETURN(mscale_all_dim, parameters.Float("mscale_all_dim"));
  }
  if (mscale == 0.0 || mscale_all_dim == 0.0) return YarnMagnitude(factor, 1.0);
  double result = YarnMagnitude(factor, mscale) / YarnMagnitude(factor, mscale_all_dim);
  if (!(result > 0.0 && result <= kMaxFactor)) {
    return parameters.Error("mscale", base::StrCat(mscale), "a positive ratio to mscale_all_dim");
  }
  return result;
}

absl::Status ReadYarn(const JsonSource& parameters, int32_t max_context, RopeSpec* rope) {
  double extension = static_cast<double>(max_context) / rope->original_max_position;
  HEDDLE_ASSIGN_OR_RETURN(double factor, parameters.PositiveOr("factor", kMaxFactor, extension));
  HEDDLE_ASSIGN_OR_RETURN(double attention, YarnAttentionFactor(parameters, factor));
  HEDDLE_ASSIGN_OR_RETURN(double fast, parameters.PositiveOr("beta_fast", kMaxFactor, 32.0));
  HEDDLE_ASSIGN_OR_RETURN(double slow, parameters.PositiveOr("beta_slow", kMaxFactor, 1.0));
  if (fast < slow) {
    return parameters.Error("beta_fast", base::StrCat(fast),
                            base::StrCat("at least \"beta_slow\" (", slow, ")"));
  }
  HEDDLE_ASSIGN_OR_RETURN(rope->yarn_truncate, parameters.BoolOr("truncate", true));
  rope->scaling = RopeScaling::kYarn;
  rope->factor = static_cast<float>(factor);
  rope->attention_factor = static_cast<float>(attention);
  rope->beta_fast = static_cast<float>(fast);
  rope->beta_slow = static_cast<float>(slow);
  return absl::OkStatus();
}

absl::Status ReadScaling(const JsonSource& config, const JsonSource& parameters,
                         int32_t max_context, RopeSpec* rope) {
  HEDDLE_ASSIGN_OR_RETURN(std::string type, RopeType(parameters));
  HEDDLE_RETURN_IF_ERROR(ReadOriginalContext(config, parameters, max_context, rope));
  if (type == "default") return absl::OkStatus();
  // NTK scaling that grows with the text: equal to none up to max_position_embeddings, which is
  // what this model is served with.
  if (type == "dynamic") return absl::OkStatus();
  if (type == "linear") {
    HEDDLE_ASSIGN_OR_RETURN(double factor, parameters.Positive("factor", kMaxFactor));
    rope->scaling = RopeScaling::kLinear;
    rope->factor = static_cast<float>(factor);
    return absl::OkStatus();
  }
  if (type == "llama3") return ReadLlama3(parameters, rope);
  if (type == "yarn") return ReadYarn(parameters, max_context, rope);
  return parameters.Unsupported(parameters.Has("rope_type") ? "rope_type" : "type",
                                base::Quote(type),
                                "supported are default, linear, dynamic, llama3 and yarn");
}

}  // namespace

absl::StatusOr<RopeSpec> ReadRope(const JsonSource& config, int32_t head_dim, int32_t max_context) {
  HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> parameters, FindParameters(config));
  const JsonSource* inner = parameters.has_value() ? &*parameters : nullptr;
  RopeSpec rope;
  HEDDLE_ASSIGN_OR_RETURN(double theta,
                          NumberOr(config, inner, "rope_theta", kMaxTheta, kDefaultTheta));
  HEDDLE_ASSIGN_OR_RETURN(double part, NumberOr(config, inner, "partial_rotary_factor", 1.0, 1.0));
  if (theta <= 1.0) return config.Error("rope_theta", base::StrCat(theta), "a number above 1");
  rope.theta = static_cast<float>(theta);
  rope.rotary_dim = static_cast<int32_t>(head_dim * part);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    return config.Error("head_dim",
                        base::StrCat(head_dim, " (", rope.rotary_dim, " of it rotated)"),
                        "an even number of rotated dimensions");
  }
  if (inner != nullptr) HEDDLE_RETURN_IF_ERROR(ReadScaling(config, *inner, max_context, &rope));
  return rope;
}

}  // namespace heddle::engine
