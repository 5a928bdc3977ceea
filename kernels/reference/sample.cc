#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// exp((x - max) / temperature), also where both are infinite.
double Weight(float x, float max, float temperature) {
  return x == max ? 1.0 : std::exp((static_cast<double>(x) - max) / temperature);
}

std::vector<float> EditedLogits(const float* logits, int64_t vocab, const SampleRowParams& params) {
  std::vector<float> edited(logits, logits + vocab);
  for (const LogitEdit& edit : params.edits) {
    float& x = edited[edit.token];
    x += edit.bias;
    x = (x > 0 ? x / edit.scale_div : x * edit.scale_div) + edit.add;
  }
  for (int64_t i = 0; i < vocab; ++i) {
    bool allowed = !params.allowed || ((params.allowed[i / 32] >> (i % 32)) & 1);
    if (!allowed || std::isnan(edited[i])) edited[i] = kBanned;
  }
  return edited;
}

// Bans the logits below the largest, `max`, minus n standard deviations of the finite ones.
void KeepTopSigma(float max, double n, std::vector<float>* logits) {
  double sum = 0, squares = 0, count = 0;
  for (float x : *logits) {
    if (!std::isfinite(x)) continue;
    sum += x;
    ++count;
  }
  const double mean = sum / count;
  for (float x : *logits) squares += std::isfinite(x) ? (x - mean) * (x - mean) : 0.0;
  const double least = std::isinf(max) ? max : max - n * std::sqrt(squares / count);
  for (float& x : *logits) {
    if (x < least) x = kBanned;
  }
}

// Ids from the most to the least likely; the lower id first in a tie.
std::vector<int32_t> Ranked(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

// How many of the ranked tokens the filters leave: each of them keeps a prefix.
size_t CountKept(const std::vector<double>& ranked_weights, const SampleRowParams& params) {
  size_t kept = ranked_weights.size();
  if (params.top_k > 0) kept = std::min<size_t>(kept, params.top_k);
  if (params.top_p < 1) {
    auto end = ranked_weights.begin() + static_cast<int64_t>(kept);
    double target = params.top_p * std::accumulate(ranked_weights.begin(), end, 0.0);
    double sum = ranked_weights[0];
    size_t n = 1;
    while (n < kept && sum < target) sum += ranked_weights[n++];
    kept = n;
  }
  while (kept > 1 && ranked_weights[kept - 1] < params.min_p * ranked_weights[0]) --kept;
  return kept;
}

// The ids that typical_p leaves, by the paper's formula; the ids rank by their weights.
std::vector<int32_t> Typical(const std::vector<int32_t>& ids, const std::vector<double>& weights,
                             double typical_p) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double entropy = 0;
  for (double w : weights) entropy -= w > 0 ? w / total * std::log(w / total) : 0.0;
  std::vector<double> distances;
  distances.reserve(weights.size());
  for (double w : weights) distances.push_back(std::fabs(-std::log(w / total) - entropy));
  std::vector<size_t> nearest(ids.size());
  std::iota(nearest.begin(), nearest.end(), size_t{0});
  std::stable_sort(nearest.begin(), nearest.end(),
                   [&](size_t a, size_t b) { return distances[a] < distances[b]; });
  double sum = 0;
  size_t last = 0;
  while (last + 1 < nearest.size() && (sum += weights[nearest[last]]) < typical_p * total) ++last;
  std::vector<int32_t> kept;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (distances[i] <= distances[nearest[last]]) kept.push_back(ids[i]);
  }
  return kept;
}

// Whether this draw leaves out the likeliest tokens.
bool TossesThemOut(const SampleRowParams& params) {
  return params.xtc_probability > 0 && params.xtc_threshold <= 0.5f &&
         CounterUniform(params.seed, params.counter, /*stream=*/1) <= params.xtc_probability;
}

// The ids that xtc_threshold leaves; `weight` gives what they weigh.
template <typename Weigh>
std::vector<int32_t> WithoutTop(const std::vector<int32_t>& ids, const Weigh& weight,
                                double threshold) {
  double total = 0;
  for (int32_t id : ids) total += weight(id);
  double least = std::numeric_limits<double>::infinity();
  for (int32_t id : ids) {
    const double w = weight(id);
    if (w > 0 && w >= threshold * total) least = std::min(least, w);
  }
  std::vector<int32_t> kept;
  for (int32_t id : ids) {
    if (weight(id) <= least) kept.push_back(id);
  }
  return kept;
}

// Inverts the cumulative distribution of the shares, whatever they sum up to, in order of id.
int32_t DrawShare(const std::vector<double>& shares, const SampleRowParams& params) {
  const double target = std::accumulate(shares.begin(), shares.end(), 0.0) *
                        CounterUniform(params.seed, params.counter, 0);
  double sum = 0;
  int32_t drawn = -1;
  for (size_t id = 0; id < shares.size(); ++id) {
    if (shares[id] == 0) continue;
    sum += shares[id];
    drawn = static_cast<int32_t>(id);
    if (sum > target) break;
  }
  return drawn;
}

// Rejection sampling of the proposed token. If rounding leaves nothing beyond q, p and q are equal.
int32_t Verify(std::vector<double> shares, const SampleRowParams& params) {
  const auto proposed = static_cast<size_t>(params.proposed);
  const double toss = CounterUniform(params.seed, params.counter, /*stream=*/2);
  if (toss * params.proposed_shares[proposed] < shares[proposed]) return params.proposed;
  const std::vector<double> all = shares;
  for (size_t id = 0; id < shares.size(); ++id) {
    shares[id] = std::max(0.0, shares[id] - params.proposed_shares[id]);
  }
  const int32_t drawn = DrawShare(shares, params);
  return drawn >= 0 ? drawn : DrawShare(all, params);
}

int32_t Draw(const float* logits, int64_t vocab, const SampleRowParams& params) {
  std::vector<float> edited = EditedLogits(logits, vocab, params);
  std::vector<int32_t> ids = Ranked(edited);
  float max = edited[ids[0]];
  if (max == kBanned) return -1;
  if (params.temperature == 0) return ids[0];
  if (params.top_n_sigma > 0) KeepTopSigma(max, params.top_n_sigma, &edited);
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (int32_t id : ids) weights.push_back(Weight(edited[id], max, params.temperature));
  ids.resize(CountKept(weights, params));
  weights.resize(ids.size());
  if (params.typical_p < 1) ids = Typical(ids, weights, params.typical_p);
  if (TossesThemOut(params)) {
    auto weight = [&](int32_t id) { return Weight(edited[id], max, params.temperature); };
    ids = WithoutTop(ids, weight, params.xtc_threshold);
  }
  std::vector<double> shares(edited.size());
  for (int32_t id : ids) shares[id] = Weight(edited[id], max, params.temperature);
  if (params.shares == nullptr && params.proposed < 0) return DrawShare(shares, params);
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  if (params.shares != nullptr) std::copy(shares.begin(), shares.end(), params.shares);
  return params.proposed < 0 ? DrawShare(shares, params) : Verify(std::move(shares), params);
}

// Logprob of the token in row `i` of the call, and its alternatives, from unedited logits.
void Report(const SampleArgs& args, const float* logits, size_t i) {
  std::vector<float> clean = EditedLogits(logits, args.logits.cols, SampleRowParams());
  std::vector<int32_t> ids = Ranked(clean);
  float max = clean[ids[0]];
  double sum = 0;
  for (float x : clean) sum += Weight(x, max, 1.0f);
  auto logprob = [&](int32_t id) {
    double shifted = clean[id] == max ? 0.0 : static_cast<double>(clean[id]) - max;
    return static_cast<float>(shifted - std::log(sum));
  };
  int32_t token = args.tokens[i];
  args.logprobs[i] = token >= 0 ? logprob(token) : kBanned;
  for (int32_t j = 0; j < args.rows[i].num_top; ++j) {
    bool there = j < static_cast<int32_t>(ids.size());
    int64_t to = static_cast<int64_t>(i) * args.max_top + j;
    args.top_tokens[to] = there ? ids[j] : -1;
    args.top_logprobs[to] = there ? logprob(ids[j]) : kBanned;
  }
}

}  // namespace

void Sample(const SampleArgs& args) {
  for (size_t i = 0; i < args.rows.size(); ++i) {
    const SampleRowParams& params = args.rows[i];
    const float* logits = args.logits.row<float>(params.logit_row);
    args.tokens[i] =
        params.forced_token >= 0 ? params.forced_token : Draw(logits, args.logits.cols, params);
    if (params.num_top >= 0) Report(args, logits, i);
  }
}

}  // namespace heddle::kernels::reference
