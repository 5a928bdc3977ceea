#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace heddle::kernels::cpu {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// Buckets by the upper 12 bits of a key: sign, exponent and three bits of mantissa.
constexpr int kBucketShift = 20;
constexpr size_t kNumBuckets = size_t{1} << (32 - kBucketShift);

// For deciding how many threads to wake.
constexpr double kNsPerLogit = 1;

// Unsigned integers in the order of the floats. No NaN; both zeros are one value.
uint32_t SortableKey(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
}

bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

bool Allowed(const uint32_t* mask, size_t token) {
  return mask == nullptr || ((mask[token / 32] >> (token % 32)) & 1) != 0;
}

// The k tokens of greatest logit, ranked.
void SelectTop(const std::vector<float>& logits, size_t k, std::vector<Candidate>* out) {
  std::array<uint32_t, kNumBuckets> counts{};
  for (float x : logits) ++counts[SortableKey(x) >> kBucketShift];
  size_t bucket = kNumBuckets;
  for (size_t seen = 0; bucket > 0 && seen < k;) seen += counts[--bucket];
  out->clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (SortableKey(logits[i]) >> kBucketShift >= bucket) {
      out->push_back({logits[i], 0, static_cast<int32_t>(i)});
    }
  }
  k = std::min(k, out->size());
  auto end = out->begin() + static_cast<int64_t>(k);
  if (k < out->size()) std::nth_element(out->begin(), end, out->end(), RanksBefore);
  out->resize(k);
  std::sort(out->begin(), out->end(), RanksBefore);
}

class RowSampler {
 public:
  RowSampler(const SampleRowParams& params, const float* logits, int64_t vocab,
             const RowKernels& kernels, SamplerScratch& scratch)
      : params_(params), raw_(logits), kernels_(kernels), s_(scratch) {
    s_.logits.resize(static_cast<size_t>(vocab));
    s_.weights.resize(static_cast<size_t>(vocab));
  }

  int32_t Draw() {
    max_ = kernels_.copy_logits(raw_, Vocab(), s_.logits.data());
    if (Edit()) max_ = *std::max_element(s_.logits.begin(), s_.logits.end());
    if (max_ == kBanned) return -1;
    if (params_.temperature == 0) return FirstBest();
    if (params_.top_n_sigma > 0) KeepTopSigma();
    ComputeWeights();
    bool top_k = params_.top_k > 0 && params_.top_k < Vocab();
    const bool excludes_top = ExcludesTop();
    const bool rejects = params_.shares != nullptr || params_.proposed >= 0;
    if (!top_k && params_.top_p >= 1) {
      if (params_.typical_p >= 1 && !excludes_top && !rejects) return DrawAbove(params_.min_p);
      SelectAbove(params_.min_p);
    } else {
      SelectPrefix(top_k);
    }
    if (params_.typical_p < 1) KeepTypical();
    if (excludes_top) ExcludeTop();
    if (params_.shares != nullptr) WriteShares();
    return params_.proposed >= 0 ? VerifyProposed() : DrawCandidate();
  }

  // Log-softmax of `token` and of the `num_top` most likely, from the row as it came.
  void Report(int32_t token, float* logprob, int32_t* top_tokens, float* top_logprobs) {
    max_ = kernels_.copy_logits(raw_, Vocab(), s_.logits.data());
    double sum = SumOfWeights(1.0f, nullptr);
    auto log_sum = static_cast<float>(std::log(sum));
    auto value = [&](float x) { return (x == max_ ? 0.0f : x - max_) - log_sum; };
    *logprob = token >= 0 ? value(s_.logits[static_cast<size_t>(token)]) : kBanned;
    if (params_.num_top <= 0) return;
    SelectTop(s_.logits, static_cast<size_t>(params_.num_top), &s_.candidates);
    for (size_t j = 0; j < static_cast<size_t>(params_.num_top); ++j) {
      bool there = j < s_.candidates.size();
      top_tokens[j] = there ? s_.candidates[j].token : -1;
      top_logprobs[j] = there ? value(s_.candidates[j].logit) : kBanned;
    }
  }

 private:
  int64_t Vocab() const { return static_cast<int64_t>(s_.logits.size()); }

  // True if the maximum may have changed.
  bool Edit() {
    for (const LogitEdit& edit : params_.edits) {
      HEDDLE_CHECK(edit.token >= 0 && edit.token < Vocab(), "edit of a token outside the logits");
      float& x = s_.logits[static_cast<size_t>(edit.token)];
      x += edit.bias;
      x = (x > 0 ? x / edit.scale_div : x * edit.scale_div) + edit.add;
      if (std::isnan(x)) x = kBanned;
    }
    if (params_.allowed != nullptr) {
      for (size_t i = 0; i < s_.logits.size(); ++i) {
        if (!Allowed(params_.allowed, i)) s_.logits[i] = kBanned;
      }
    }
    return !params_.edits.empty() || params_.allowed != nullptr;
  }

  int32_t FirstBest() const {
    return static_cast<int32_t>(std::find(s_.logits.begin(), s_.logits.end(), max_) -
                                s_.logits.begin());
  }

  // Bans the logits below the largest minus top_n_sigma standard deviations of the finite ones.
  void KeepTopSigma() {
    double sum = 0, squares = 0, count = 0;  // of distances from the largest
    if (std::isfinite(max_)) {
      for (float x : s_.logits) {
        if (x == kBanned) continue;
        const double below = static_cast<double>(max_) - x;
        sum += below;
        squares += below * below;
        ++count;
      }
    }
    const double mean = count > 0 ? sum / count : 0;
    const double variance = count > 0 ? std::max(0.0, squares / count - mean * mean) : 0;
    const double least = max_ - params_.top_n_sigma * std::sqrt(variance);
    for (float& x : s_.logits) {
      if (x < least) x = kBanned;
    }
  }

  // Sum of exp((x - max) / temperature); the weights themselves to `out` unless nullptr.
  double SumOfWeights(float temperature, float* out) const {
    if (std::isfinite(max_)) {
      return kernels_.exp_sum(s_.logits.data(), Vocab(), max_, 1.0f / temperature, out);
    }
    double sum = 0;  // +infinity takes all
    for (size_t i = 0; i < s_.logits.size(); ++i) {
      float weight = s_.logits[i] == max_ ? 1.0f : 0.0f;
      if (out) out[i] = weight;
      sum += weight;
    }
    return sum;
  }

  void ComputeWeights() { total_ = SumOfWeights(params_.temperature, s_.weights.data()); }

  // Candidates: what top_k, top_p and min_p leave.
  void SelectPrefix(bool top_k) {
    if (top_k) {
      SelectTop(s_.logits, static_cast<size_t>(params_.top_k), &s_.candidates);
    } else {
      SelectLikely();
    }
    for (Candidate& c : s_.candidates) c.weight = s_.weights[static_cast<size_t>(c.token)];
    KeepPrefix(top_k ? MassOfCandidates() : total_);
  }

  // Candidates: all that DrawAbove would draw from.
  void SelectAbove(float min_p) {
    s_.candidates.clear();
    for (size_t i = 0; i < s_.weights.size(); ++i) {
      const float w = s_.weights[i];
      if (w < min_p || w == 0) continue;
      s_.candidates.push_back({s_.logits[i], w, static_cast<int32_t>(i)});
    }
  }

  double MassOfCandidates() const {
    double mass = 0;
    for (const Candidate& c : s_.candidates) mass += c.weight;
    return mass;
  }

  // Candidates: a ranked prefix whose weight is at least top_p of all.
  void SelectLikely() {
    std::array<double, kNumBuckets> mass{};
    for (float w : s_.weights) mass[SortableKey(w) >> kBucketShift] += w;
    double target = params_.top_p * total_;
    size_t bucket = kNumBuckets;
    // Sums in another order differ in the last bits: the margin makes up for it. The most likely
    // token is always among the candidates.
    double sum = 0;
    while (bucket > 0 && (sum == 0 || sum < target * (1 + 1e-6))) sum += mass[--bucket];
    s_.candidates.clear();
    for (size_t i = 0; i < s_.weights.size(); ++i) {
      float w = s_.weights[i];
      if (w > 0 && SortableKey(w) >> kBucketShift >= bucket) {
        s_.candidates.push_back({s_.logits[i], w, static_cast<int32_t>(i)});
      }
    }
    std::sort(s_.candidates.begin(), s_.candidates.end(), RanksBefore);
  }

  // Cuts the ranked candidates, of weight `mass` in all, by top_p and min_p.
  void KeepPrefix(double mass) {
    std::vector<Candidate>& candidates = s_.candidates;
    size_t kept = candidates.size();
    if (params_.top_p < 1) {
      double target = params_.top_p * mass;
      double sum = candidates[0].weight;
      size_t n = 1;
      while (n < kept && sum < target) sum += candidates[n++].weight;
      kept = n;
    }
    float least = params_.min_p * candidates[0].weight;
    while (kept > 1 && candidates[kept - 1].weight < least) --kept;
    candidates.resize(kept);
  }

  // Cuts the candidates by typical_p. With d = (max - logit) / temperature, surprise minus entropy
  // is d minus its mean: what normalises the probabilities cancels.
  void KeepTypical() {
    std::vector<Candidate>& candidates = s_.candidates;
    std::erase_if(candidates, [](const Candidate& c) { return c.weight == 0; });
    const double mass = MassOfCandidates();
    double mean = 0;
    for (const Candidate& c : candidates) mean += c.weight * Surprise(c.logit);
    mean /= mass;
    auto distance = [&](const Candidate& c) {
      return static_cast<float>(std::fabs(Surprise(c.logit) - mean));
    };
    const float limit = TypicalLimit(distance, params_.typical_p * mass);
    std::erase_if(candidates, [&](const Candidate& c) { return distance(c) > limit; });
  }

  // Up to a constant.
  double Surprise(float logit) const {
    return logit == max_ ? 0.0 : (static_cast<double>(max_) - logit) / params_.temperature;
  }

  // The distance of the candidate at which those nearest reach `target`: its bucket by a histogram,
  // then itself by sorting that bucket.
  template <typename Distance>
  float TypicalLimit(const Distance& distance, double target) {
    std::array<double, kNumBuckets> mass{};
    auto bucket_of = [&](const Candidate& c) { return SortableKey(distance(c)) >> kBucketShift; };
    for (const Candidate& c : s_.candidates) mass[bucket_of(c)] += c.weight;
    double sum = 0;
    size_t bucket = 0;
    while (bucket + 1 < kNumBuckets && sum + mass[bucket] < target) sum += mass[bucket++];
    s_.border.clear();
    for (const Candidate& c : s_.candidates) {
      if (bucket_of(c) == bucket) s_.border.push_back(c);
    }
    std::sort(s_.border.begin(), s_.border.end(),
              [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
    float limit = std::numeric_limits<float>::infinity();  // rounding kept the sum below target
    for (const Candidate& c : s_.border) {
      limit = distance(c);
      sum += c.weight;
      if (sum >= target) break;
    }
    return limit;
  }

  // The toss of xtc_probability.
  bool ExcludesTop() const {
    return params_.xtc_probability > 0 && params_.xtc_threshold <= 0.5f &&
           CounterUniform(params_.seed, params_.counter, /*stream=*/1) <= params_.xtc_probability;
  }

  // Cuts the candidates that are likelier than the least likely of those of xtc_threshold.
  void ExcludeTop() {
    const double threshold = params_.xtc_threshold * MassOfCandidates();
    float least = std::numeric_limits<float>::infinity();  // logit
    for (const Candidate& c : s_.candidates) {
      if (c.weight > 0 && c.weight >= threshold) least = std::min(least, c.logit);
    }
    std::erase_if(s_.candidates, [&](const Candidate& c) { return c.logit > least; });
  }

  void WriteShares() const {
    std::fill_n(params_.shares, Vocab(), 0.0f);
    const double mass = MassOfCandidates();
    for (const Candidate& c : s_.candidates) {
      params_.shares[c.token] = static_cast<float>(c.weight / mass);
    }
  }

  // Rejection sampling. If rounding leaves nothing beyond the proposed shares, both are equal.
  int32_t VerifyProposed() {
    const float* const q = params_.proposed_shares;
    const double mass = MassOfCandidates();
    const double toss = CounterUniform(params_.seed, params_.counter, /*stream=*/2);
    double beyond = 0;
    for (const Candidate& c : s_.candidates) {
      const double share = c.weight / mass;
      if (c.token == params_.proposed && toss * q[c.token] < share) return params_.proposed;
      beyond += std::max(0.0, share - q[c.token]);
    }
    if (beyond <= 0) return DrawCandidate();
    for (Candidate& c : s_.candidates) {
      c.weight = static_cast<float>(std::max(0.0, c.weight / mass - q[c.token]));
    }
    return DrawCandidate();
  }

  double Uniform() const { return CounterUniform(params_.seed, params_.counter, 0); }

  int32_t DrawCandidate() {
    std::vector<Candidate>& candidates = s_.candidates;
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    double target = MassOfCandidates() * Uniform();
    double sum = 0;
    int32_t drawn = -1;
    for (const Candidate& c : candidates) {
      sum += c.weight;
      if (c.weight > 0) drawn = c.token;
      if (sum > target) break;
    }
    return drawn;
  }

  // Draws among all tokens of at least `min_p` times the greatest weight, which is 1.
  int32_t DrawAbove(float min_p) {
    double total = 0;
    for (float w : s_.weights) total += w >= min_p ? w : 0.0f;
    double target = total * Uniform();
    double sum = 0;
    int32_t drawn = -1;
    for (size_t i = 0; i < s_.weights.size(); ++i) {
      float w = s_.weights[i];
      if (w < min_p || w == 0) continue;
      sum += w;
      drawn = static_cast<int32_t>(i);
      if (sum > target) break;
    }
    return drawn;
  }

  const SampleRowParams& params_;
  const float* raw_;
  const RowKernels& kernels_;
  SamplerScratch& s_;
  float max_ = kBanned;
  double total_ = 0;
};

}  // namespace

void Sample(const SampleArgs& args, const RowKernels& kernels, ThreadPool& pool,
            std::vector<SamplerScratch>& scratch) {
  scratch.resize(static_cast<size_t>(pool.num_threads()));
  auto n = static_cast<int64_t>(args.rows.size());
  double cost = kNsPerLogit * static_cast<double>(args.logits.cols);
  pool.ForEach(n, cost, [&](int64_t i, int32_t thread) {
    const SampleRowParams& params = args.rows[static_cast<size_t>(i)];
    HEDDLE_CHECK(params.logit_row >= 0 && params.logit_row < args.logits.rows,
                 "sample: logit row outside the logits");
    HEDDLE_CHECK(params.forced_token < args.logits.cols, "sample: forced token beyond the logits");
    RowSampler row(params, args.logits.row<float>(params.logit_row), args.logits.cols, kernels,
                   scratch[static_cast<size_t>(thread)]);
    args.tokens[i] = params.forced_token >= 0 ? params.forced_token : row.Draw();
    if (params.num_top < 0) return;
    HEDDLE_CHECK(params.num_top <= args.max_top, "sample: num_top beyond max_top");
    row.Report(args.tokens[i], args.logprobs + i, args.top_tokens + i * args.max_top,
               args.top_logprobs + i * args.max_top);
  });
}

}  // namespace heddle::kernels::cpu
