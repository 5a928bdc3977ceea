// RoPE of config.json, as transformers reads it (modeling_rope_utils.py): `rope_scaling` takes
// precedence over `rope_parameters`; theta and the rotated part stand in it or beside it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Finds the parameters of all layers or, if kinds of layers differ, those of `layer_type`.
absl::StatusOr<std::optional<JsonSource>> FindParameters(const JsonSource& config,
                                                         std::string_view layer_type) {
  for (std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = config.Find(key);
    bool empty = value == nullptr || (value->is_object() && value->empty());
    if (empty) continue;
    HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> parameters, config.Object(key));
    if (parameters.has_value() && parameters->Has(layer_type)) {
      return parameters->Object(layer_type);
    }
    return parameters;
  }
  return std::optional<JsonSource>();
}

absl::StatusOr<std::string> RopeType(const JsonSource& parameters) {
  if (parameters.Has("rope_type")) return parameters.String("rope_type");
  return parameters.StringOr("type", "default");
}

// Reads numbers that may stand in the parameters or beside them.
struct Keys {
  std::string_view inside;
  std::string_view beside;
};
absl::StatusOr<double> NumberOr(const JsonSource& config, const JsonSource* parameters, Keys keys,
                                double max, double absent) {
  if (parameters != nullptr && parameters->Has(keys.inside)) {
    return parameters->Positive(keys.inside, max);
  }
  return config.PositiveOr(keys.beside, max, absent);
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
  if (high < low) {
    return parameters.Error("high_freq_factor", base::StrCat(high),
                            base::StrCat("at least \"low_freq_factor\" (", low, ")"));
  }
  rope->scaling = RopeScaling::kLlama3;
  rope->factor = static_cast<float>(factor);
  rope->low_freq_factor = static_cast<float>(low);
  rope->high_freq_factor = static_cast<float>(high);
  return absl::OkStatus();
}

// Sharpens attention by 0.1 ln(factor) + 1 (Peng et al. 2023, section 3.4).
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

// All pairs have the frequencies of whole heads, and those behind a part of them do not turn.
void ApplyProportional(double part, int32_t head_dim, RopeSpec* rope) {
  rope->rotary_dim = head_dim;
  rope->divisors.assign(static_cast<size_t>(head_dim / 2), std::numeric_limits<float>::infinity());
  const auto turning = static_cast<std::ptrdiff_t>(std::floor(part * head_dim / 2));
  std::fill_n(rope->divisors.begin(), turning, 1.0f);
}

// The base grows by the factor, and all frequencies shrink by its root that moves the first pair's
// as far as the last one's (Su 2023, "NTK-RoPE, fixed"; Alibaba-NLP's own code of GTE).
absl::Status ReadFixedNtk(const JsonSource& parameters, RopeSpec* rope) {
  constexpr std::string_view kMixed = "mixed_b";
  if (const nlohmann::json* mixed = parameters.Find(kMixed); mixed != nullptr) {
    return parameters.Unsupported(kMixed, JsonSource::Show(*mixed), "expected null");
  }
  HEDDLE_ASSIGN_OR_RETURN(const double factor, parameters.Positive("factor", kMaxFactor));
  if (factor <= 1.0) return absl::OkStatus();
  rope->theta = static_cast<float>(rope->theta * factor);
  rope->scaling = RopeScaling::kLinear;
  rope->factor = static_cast<float>(std::pow(factor, 2.0 / rope->rotary_dim));
  return absl::OkStatus();
}

// Reads one divisor per pair.
absl::StatusOr<std::vector<float>> ReadFactors(const JsonSource& parameters, std::string_view key,
                                               int32_t pairs) {
  const nlohmann::json* list = parameters.Find(key);
  if (list == nullptr || !list->is_array() || list->size() != static_cast<size_t>(pairs)) {
    return parameters.Error(key, list == nullptr ? "missing" : JsonSource::Show(*list),
                            base::StrCat("a list of ", pairs, " numbers"));
  }
  std::vector<float> factors;
  for (const nlohmann::json& item : *list) {
    double factor = item.is_number() ? item.get<double>() : 0.0;
    if (!(factor > 0.0 && factor <= kMaxFactor)) {
      return parameters.Error(key, JsonSource::Show(item),
                              base::StrCat("numbers above 0 and up to ", kMaxFactor));
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

// Ding et al. 2024: factors for texts within the original context, and for longer ones.
absl::Status ReadLongRope(const JsonSource& parameters, int32_t max_context, RopeSpec* rope) {
  HEDDLE_ASSIGN_OR_RETURN(rope->divisors,
                          ReadFactors(parameters, "short_factor", rope->rotary_dim / 2));
  HEDDLE_ASSIGN_OR_RETURN(rope->long_divisors,
                          ReadFactors(parameters, "long_factor", rope->rotary_dim / 2));
  const double original = rope->original_max_position;
  HEDDLE_ASSIGN_OR_RETURN(double factor,
                          parameters.PositiveOr("factor", kMaxFactor, max_context / original));
  double attention = 1.0;
  if (factor > 1.0 && original > 1.0) {
    attention = std::sqrt(1.0 + std::log(factor) / std::log(original));
  }
  HEDDLE_ASSIGN_OR_RETURN(attention,
                          parameters.PositiveOr("attention_factor", kMaxFactor, attention));
  rope->scaling = RopeScaling::kLongRope;
  rope->attention_factor = static_cast<float>(attention);
  return absl::OkStatus();
}

absl::Status ReadScaling(const JsonSource& config, const JsonSource& parameters,
                         int32_t max_context, RopeSpec* rope) {
  HEDDLE_ASSIGN_OR_RETURN(std::string type, RopeType(parameters));
  HEDDLE_RETURN_IF_ERROR(ReadOriginalContext(config, parameters, max_context, rope));
  // The sections of images' RoPE have one position where there is text alone.
  if (type == "default" || type == "mrope") return absl::OkStatus();
  // This NTK scaling depends on the text's length and has no effect up to max_position_embeddings,
  // which is the length that this model is served with.
  if (type == "dynamic") return absl::OkStatus();
  if (type == "linear") {
    HEDDLE_ASSIGN_OR_RETURN(double factor, parameters.Positive("factor", kMaxFactor));
    rope->scaling = RopeScaling::kLinear;
    rope->factor = static_cast<float>(factor);
    return absl::OkStatus();
  }
  if (type == "llama3") return ReadLlama3(parameters, rope);
  if (type == "yarn") return ReadYarn(parameters, max_context, rope);
  // Phi-3's first configs call it "su".
  if (type == "longrope" || type == "su") return ReadLongRope(parameters, max_context, rope);
  return parameters.Unsupported(
      parameters.Has("rope_type") ? "rope_type" : "type", base::Quote(type),
      "supported are default, linear, dynamic, llama3, yarn and longrope");
}

}  // namespace

absl::StatusOr<RopeSpec> ReadRope(const JsonSource& config, const Family& family, int32_t head_dim,
                                  int32_t max_context) {
  HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> parameters,
                          FindParameters(config, "full_attention"));
  nlohmann::json absent;
  if (!parameters.has_value() && !family.absent_rope.empty()) {
    absent = nlohmann::json::parse(family.absent_rope);
    parameters.emplace(config.file(), absent, "rope_parameters.");
  }
  const JsonSource* inner = parameters.has_value() ? &*parameters : nullptr;
  RopeSpec rope;
  HEDDLE_ASSIGN_OR_RETURN(double theta,
                          NumberOr(config, inner, {"rope_theta", family.keys.rope_theta}, kMaxTheta,
                                   family.rope_theta));
  HEDDLE_ASSIGN_OR_RETURN(
      double part, NumberOr(config, inner, {"partial_rotary_factor", family.keys.rotary_part}, 1.0,
                            family.rotary_part));
  // transformers 5 saves the part once more beside the parameters.
  if (inner != nullptr && inner->Has("partial_rotary_factor")) {
    static_cast<void>(config.Has("partial_rotary_factor"));
  }
  if (theta <= 1.0) {
    return config.Error(family.keys.rope_theta, base::StrCat(theta), "a number above 1");
  }
  rope.theta = static_cast<float>(theta);
  rope.layout = family.rope_layout;
  std::string type;
  if (inner != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(type, RopeType(*inner));
  }
  const bool is_proportional = type == "proportional";
  rope.rotary_dim = is_proportional ? head_dim : static_cast<int32_t>(head_dim * part);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    return config.Error("head_dim",
                        base::StrCat(head_dim, " (", rope.rotary_dim, " of it rotated)"),
                        "an even number of rotated dimensions");
  }
  if (is_proportional) {
    ApplyProportional(part, head_dim, &rope);
    rope.original_max_position = max_context;
    return rope;
  }
  if (family.fixed_ntk && type == "ntk") {
    rope.original_max_position = max_context;
    HEDDLE_RETURN_IF_ERROR(ReadFixedNtk(*inner, &rope));
    return rope;
  }
  if (inner != nullptr) HEDDLE_RETURN_IF_ERROR(ReadScaling(config, *inner, max_context, &rope));
  return rope;
}

absl::StatusOr<RopeSpec> ReadWindowRope(const JsonSource& config, const Family& family,
                                        const Hyperparameters& values) {
  constexpr std::string_view kLayerType = "sliding_attention";
  const bool has_theta = family.window_rope == WindowRope::kOwnTheta;
  const double absent = has_theta ? 10000.0 : double{values.rope.theta};  // Gemma3TextConfig
  HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> nested, config.Object("rope_parameters"));
  if (nested.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(nested, nested->Object(kLayerType));
  }
  RopeSpec rope;
  rope.rotary_dim = values.head_dim;
  rope.layout = family.rope_layout;
  rope.original_max_position = values.max_context;
  HEDDLE_ASSIGN_OR_RETURN(double theta,
                          NumberOr(config, nested.has_value() ? &*nested : nullptr,
                                   {"rope_theta", "rope_local_base_freq"}, kMaxTheta, absent));
  if (nested.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(std::string type, RopeType(*nested));
    if (type != "default") {
      return nested->Unsupported("rope_type", base::Quote(type), "expected default");
    }
  }
  if (theta <= 1.0) {
    return config.Error("rope_local_base_freq", base::StrCat(theta), "a number above 1");
  }
  rope.theta = static_cast<float>(theta);
  return rope;
}

}  // namespace heddle::engine
