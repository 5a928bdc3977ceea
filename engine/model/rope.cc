// Inverse frequencies of rotary embeddings. They are rounded to F32 where transformers rounds
// (modeling_rope_utils.py): at position 100,000 one unit in the last place of a frequency turns the
// fastest pair by 6e-3, so that the same formula in higher precision would give other logits.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {
namespace {

// theta^(2i / rotary_dim) for each pair i; first the exponent is rounded to F32, then the power.
std::vector<float> Powers(const RopeSpec& rope) {
  int32_t pairs = rope.rotary_dim / 2;
  std::vector<float> powers(static_cast<size_t>(pairs));
  for (int32_t i = 0; i < pairs; ++i) {
    float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    powers[static_cast<size_t>(i)] = static_cast<float>(
        std::pow(static_cast<double>(rope.theta), static_cast<double>(exponent)));
  }
  return powers;
}

// Divides long wavelengths by `factor`, keeps short ones and interpolates between.
float ScaleLlama3(float freq, const RopeSpec& rope) {
  float context = static_cast<float>(rope.original_max_position);
  float wavelength = 2.0f * std::numbers::pi_v<float> / freq;
  if (wavelength < context / rope.high_freq_factor) return freq;
  if (wavelength > context / rope.low_freq_factor) return freq / rope.factor;
  if (rope.high_freq_factor == rope.low_freq_factor) return freq;
  float smooth = (context / wavelength - rope.low_freq_factor) /
                 (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * freq / rope.factor + smooth * freq;
}

// The (fractional) index of the pair that turns `rotations` times within the original context.
double YarnDimension(double rotations, const RopeSpec& rope) {
  double ratio = rope.original_max_position / (rotations * 2.0 * std::numbers::pi);
  return rope.rotary_dim * std::log(ratio) / (2.0 * std::log(static_cast<double>(rope.theta)));
}

// Between pair `low` and pair `high` the frequencies go from unscaled to divided by `factor`.
void ScaleYarn(const RopeSpec& rope, const std::vector<float>& powers, std::vector<float>* freqs) {
  double low = YarnDimension(rope.beta_fast, rope);
  double high = YarnDimension(rope.beta_slow, rope);
  if (rope.yarn_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;  // avoids a division by zero as transformers does
  for (size_t i = 0; i < powers.size(); ++i) {
    float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    float keep = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    float interpolated = 1.0f / (rope.factor * powers[i]);
    (*freqs)[i] = interpolated * (1.0f - keep) + (1.0f / powers[i]) * keep;
  }
}

}  // namespace

void ServeLongTexts(int32_t max_context, ModelSpec* spec) {
  if (spec->long_context == 0 || max_context <= spec->max_context) return;
  spec->max_context = spec->long_context;
  for (LayerSpec& layer : spec->layers) {
    RopeSpec& rope = layer.attention.rope;
    if (!rope.long_divisors.empty()) rope.divisors = rope.long_divisors;
  }
}

int32_t ServeShortTexts(int32_t max_context, ModelSpec* spec) {
  const int32_t longest = max_context > 0 ? max_context : spec->max_context;
  const int32_t top_k = spec->indexer_top_k();
  if (longest > top_k) return 0;
  for (LayerSpec& layer : spec->layers) layer.attention.mla.indexer = {};
  return top_k;
}

std::vector<float> InverseFrequencies(const RopeSpec& rope) {
  HEDDLE_CHECK(rope.rotary_dim % 2 == 0, "rotary_dim must be even");
  std::vector<float> powers = Powers(rope);
  if (!rope.divisors.empty()) {
    HEDDLE_CHECK(rope.divisors.size() == powers.size(), "one divisor per pair");
    for (size_t i = 0; i < powers.size(); ++i) powers[i] *= rope.divisors[i];
  }
  std::vector<float> freqs(powers.size());
  for (size_t i = 0; i < powers.size(); ++i) freqs[i] = 1.0f / powers[i];
  switch (rope.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kLongRope:
      break;  // LongRoPE consists of its divisors
    case RopeScaling::kLinear:
      for (float& freq : freqs) freq /= rope.factor;
      break;
    case RopeScaling::kLlama3:
      for (float& freq : freqs) freq = ScaleLlama3(freq, rope);
      break;
    case RopeScaling::kYarn:
      ScaleYarn(rope, powers, &freqs);
      break;
  }
  return freqs;
}

}  // namespace heddle::engine
