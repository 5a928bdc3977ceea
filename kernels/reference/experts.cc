#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

std::vector<double> Scores(const RouteArgs& args, const float* logits) {
  std::vector<double> scores(logits, logits + args.logits.cols);
  if (args.rule.score == RouteScore::kSigmoid) {
    for (double& x : scores) x = 1.0 / (1.0 + std::exp(-x));
    return scores;
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  for (double& x : scores) x = std::exp(x - max);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& x : scores) x /= sum;
  return scores;
}

// The indices of the `count` largest values, largest first, the lower index first in a tie.
std::vector<int32_t> Best(const std::vector<double>& values, int32_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Makes experts outside the best groups impossible to choose.
void KeepBestGroups(const RouteRule& rule, std::vector<double>* choice) {
  const auto size = static_cast<int64_t>(choice->size()) / rule.n_groups;
  std::vector<double> groups;
  for (int32_t g = 0; g < rule.n_groups; ++g) {
    std::vector<double> members(choice->begin() + g * size, choice->begin() + (g + 1) * size);
    std::sort(members.begin(), members.end(), std::greater<>());
    groups.push_back(std::accumulate(members.begin(), members.begin() + rule.group_best, 0.0));
  }
  const std::vector<int32_t> kept = Best(groups, rule.top_groups);
  for (int64_t e = 0; e < static_cast<int64_t>(choice->size()); ++e) {
    const bool keep = std::find(kept.begin(), kept.end(), e / size) != kept.end();
    if (!keep) (*choice)[e] = -std::numeric_limits<double>::infinity();
  }
}

// The products of an expert's layer, with its adapter and bias.
std::vector<double> Products(const Stack& stack, const float* bias, const AdapterMatrix* adapters,
                             int32_t slot, int32_t expert, const std::vector<float>& x) {
  std::vector<double> y(static_cast<size_t>(stack.rows));
  for (int64_t r = 0; r < stack.rows; ++r) {
    double& own = y[static_cast<size_t>(r)];
    for (int64_t k = 0; k < stack.cols; ++k) own += double{stack.row(expert, r)[k]} * x[k];
  }
  if (adapters != nullptr && slot >= 0) {
    AddAdapter(*adapters, slot, expert, x.data(), stack.cols, y);
  }
  for (int64_t r = 0; bias != nullptr && r < stack.rows; ++r) y[r] += bias[expert * stack.rows + r];
  return y;
}

// Adds one expert's MLP, times its weight, to `sum`.
void AddMlp(const ExpertMixArgs& args, int32_t slot, int32_t expert, double weight, const float* x,
            std::vector<double>* sum) {
  const auto& up = static_cast<const Stack&>(*args.up);
  const auto& down = static_cast<const Stack&>(*args.down);
  std::vector<float> in(x, x + up.cols);
  const auto by = static_cast<float>(args.weighs_inputs ? weight : 1.0);
  for (float& value : in) value *= by;
  const std::vector<double> y = Products(up, args.up_bias, args.up_adapters, slot, expert, in);
  std::vector<float> inner(static_cast<size_t>(down.cols));
  for (int64_t r = 0; r < down.cols; ++r) {
    inner[r] = static_cast<float>(args.gated ? Gate(args.activation, y[r], y[r + down.cols])
                                             : Activate(args.activation, y[r]));
  }
  const std::vector<double> out =
      Products(down, args.down_bias, args.down_adapters, slot, expert, inner);
  const double factor = args.weighs_inputs ? 1.0 : double{weight};
  for (int64_t r = 0; r < down.rows; ++r) (*sum)[r] += factor * out[r];
}

}  // namespace

void Route(const RouteArgs& args) {
  const RouteRule& rule = args.rule;
  for (int64_t t = 0; t < args.logits.rows; ++t) {
    const std::vector<double> scores = Scores(args, args.logits.row<float>(t));
    std::vector<double> choice = scores;
    const auto* logits = args.logits.row<float>(t);
    if (args.choice_bias == nullptr && rule.n_groups == 1)
      choice.assign(logits, logits + args.logits.cols);
    for (size_t e = 0; args.choice_bias && e < choice.size(); ++e) choice[e] += args.choice_bias[e];
    if (rule.n_groups > 1) KeepBestGroups(rule, &choice);
    const std::vector<int32_t> chosen = Best(choice, rule.top_k);
    double sum = 0;
    for (int32_t expert : chosen) sum += scores[expert];
    for (int32_t i = 0; i < rule.top_k; ++i) {
      double weight =
          scores[chosen[i]] / (rule.renormalise ? sum + rule.sum_offset : 1.0) * rule.scale;
      if (args.expert_scale != nullptr) weight *= args.expert_scale[chosen[i]];
      args.experts[t * rule.top_k + i] = chosen[i];
      args.weights[t * rule.top_k + i] = static_cast<float>(weight);
    }
  }
}

void ExpertMix(const HostBatch& batch, const ExpertMixArgs& args) {
  for (int64_t t = 0; t < args.x.rows; ++t) {
    std::vector<double> sum(static_cast<size_t>(args.out.cols));
    const int32_t slot = SlotOf(batch, {}, t);
    for (int64_t i = t * args.top_k; i < (t + 1) * args.top_k; ++i) {
      const int32_t expert = args.experts[i] - args.first_expert;  // among those that are here
      if (expert < 0 || expert >= args.up->count) continue;
      AddMlp(args, slot, expert, args.weights[i], args.x.row<float>(t), &sum);
    }
    for (size_t r = 0; r < sum.size(); ++r) {
      float& out = args.out.row<float>(t)[r];
      out = static_cast<float>((args.adds ? out : 0.0f) + sum[r]);
    }
  }
}

void HeadLinear(const HostBatch& batch, const HeadLinearArgs& args) {
  const auto& heads = static_cast<const Stack&>(*args.heads);
  for (int64_t t = 0; t < args.x.rows; ++t) {
    const int32_t slot = args.adapters == nullptr ? -1 : SlotOf(batch, {}, t);
    for (int32_t h = 0; h < heads.count; ++h) {
      const float* x = args.x.row<float>(t) + h * args.x_step;
      float* out = args.out.row<float>(t) + h * args.out_step;
      std::copy_n(x + heads.cols, args.carried, out);
      std::vector<double> y(static_cast<size_t>(heads.rows));
      for (int64_t r = 0; r < heads.rows; ++r) {
        for (int64_t k = 0; k < heads.cols; ++k) y[r] += double{heads.row(h, r)[k]} * x[k];
      }
      if (slot >= 0) AddAdapter(*args.adapters, slot, h, x, heads.cols, y);
      for (int64_t r = 0; r < heads.rows; ++r) out[args.carried + r] = static_cast<float>(y[r]);
    }
  }
}

void GateRows(Tensor gate, Tensor x) {
  for (int64_t t = 0; t < x.rows; ++t) {
    const double factor = 1.0 / (1.0 + std::exp(-double{*gate.row<float>(t)}));
    for (int64_t i = 0; i < x.cols; ++i) {
      x.row<float>(t)[i] = static_cast<float>(x.row<float>(t)[i] * factor);
    }
  }
}

}  // namespace heddle::kernels::reference
