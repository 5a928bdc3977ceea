#include "kernels/cpu/linear/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/status.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cpu {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerExpertScore = 6;  // an exponential, and one comparison per choice
constexpr double kNsPerMovedElement = 0.25;

void Softmax(const float* logits, int64_t n, float* scores) {
  const float max = *std::max_element(logits, logits + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += scores[e] = std::exp(logits[e] - max);
  for (int64_t e = 0; e < n; ++e) scores[e] /= sum;
}

// Returns the index of the first of the largest values, and makes it impossible to take again.
int32_t TakeBest(float* values, int64_t n) {
  float* best = std::max_element(values, values + n);
  *best = kImpossible;
  return static_cast<int32_t>(best - values);
}

void KeepBestGroups(const RouteRule& rule, int64_t n_experts, float* choice) {
  const int64_t size = n_experts / rule.n_groups;
  float quality[kMaxExpertGroups];
  for (int32_t g = 0; g < rule.n_groups; ++g) {
    float members[kMaxExperts];
    std::copy_n(choice + g * size, size, members);
    quality[g] = 0;
    for (int32_t i = 0; i < rule.group_best; ++i) {
      const float best = *std::max_element(members, members + size);
      TakeBest(members, size);
      quality[g] += best;
    }
  }
  bool kept[kMaxExpertGroups] = {};
  for (int32_t i = 0; i < rule.top_groups; ++i) kept[TakeBest(quality, rule.n_groups)] = true;
  for (int64_t e = 0; e < n_experts; ++e) {
    if (!kept[e / size]) choice[e] = kImpossible;
  }
}

void RouteRow(const RouteArgs& args, int64_t t) {
  const RouteRule& rule = args.rule;
  const int64_t n = args.logits.cols;
  const float* logits = args.logits.row<float>(t);
  float scores[kMaxExperts];
  float choice[kMaxExperts];
  if (rule.score == RouteScore::kSoftmax) {
    Softmax(logits, n, scores);
  } else {
    for (int64_t e = 0; e < n; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  }
  // Logits have the order of scores and stay apart where those round to the same number.
  const bool by_logits = args.choice_bias == nullptr && rule.n_groups == 1;
  for (int64_t e = 0; e < n; ++e) {
    const float score = by_logits ? logits[e] : scores[e];
    choice[e] = score + (args.choice_bias ? args.choice_bias[e] : 0.0f);
  }
  if (rule.n_groups > 1) KeepBestGroups(rule, n, choice);
  int32_t* experts = args.experts + t * rule.top_k;
  float* weights = args.weights + t * rule.top_k;
  float sum = 0;
  for (int32_t i = 0; i < rule.top_k; ++i) {
    experts[i] = TakeBest(choice, n);
    sum += weights[i] = scores[experts[i]];
  }
  const float factor = rule.renormalise ? rule.scale / (sum + rule.sum_offset) : rule.scale;
  for (int32_t i = 0; i < rule.top_k; ++i) {
    weights[i] *= factor;
    if (args.expert_scale != nullptr) weights[i] *= args.expert_scale[experts[i]];
  }
}

// The place of a pair whose expert another rank has.
constexpr int32_t kElsewhere = -1;

bool IsHere(const ExpertMixArgs& args, int32_t expert) {
  return expert >= 0 && expert < args.up->count;
}

// Counting sort of the pairs by expert; pairs of one expert stay in row order.
void SortByExpert(const ExpertMixArgs& args, ExpertScratch& scratch) {
  const int64_t pairs = args.x.rows * args.top_k;
  const auto count = static_cast<size_t>(args.up->count);
  scratch.begin.assign(count + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t expert = args.experts[i] - args.first_expert;
    HEDDLE_CHECK(args.experts[i] >= 0, "no such expert");
    if (IsHere(args, expert)) ++scratch.begin[static_cast<size_t>(expert) + 1];
  }
  std::partial_sum(scratch.begin.begin(), scratch.begin.end(), scratch.begin.begin());
  scratch.next.assign(scratch.begin.begin(), scratch.begin.end() - 1);
  scratch.place.resize(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t expert = args.experts[i] - args.first_expert;
    scratch.place[i] = IsHere(args, expert) ? scratch.next[expert]++ : kElsewhere;
  }
}

Tensor Rows(Tensor tensor, int64_t begin, int64_t end) {
  return {tensor.row<float>(begin), end - begin, tensor.cols, tensor.stride};
}

// The matrix of one member of a stack; nullopt without one.
std::optional<AdapterMatrix> MemberOf(const AdapterMatrix* adapters, int32_t member) {
  if (adapters == nullptr) return std::nullopt;
  AdapterMatrix own = *adapters;
  own.factors += member * static_cast<int64_t>(own.parts.size());
  return own;
}

const AdapterMatrix* PointerTo(const std::optional<AdapterMatrix>& adapters) {
  return adapters.has_value() ? &*adapters : nullptr;
}

// Runs the rows of one expert, from `rows` through `inner` back to `rows`.
void RunExpert(const ExpertMixArgs& args, int32_t expert, int64_t begin, int64_t end,
               std::span<const int32_t> slots, const SlotLinear& linear) {
  const auto& up = static_cast<const CpuStack&>(*args.up);
  const auto& down = static_cast<const CpuStack&>(*args.down);
  const Tensor rows = Rows(args.rows, begin, end);
  const Tensor inner = Rows(args.inner, begin, end);
  const std::optional<AdapterMatrix> up_adapters = MemberOf(args.up_adapters, expert);
  const std::optional<AdapterMatrix> down_adapters = MemberOf(args.down_adapters, expert);
  if (!slots.empty()) {
    slots = slots.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  linear({.x = rows,
          .weight = &up.matrix(expert),
          .bias = args.up_bias ? args.up_bias + expert * up.rows : nullptr,
          .epilogue = args.gated ? Epilogue::kGated : Epilogue::kNone,
          .activation = args.activation,
          .out = inner,
          .adapters = PointerTo(up_adapters)},
         slots);
  linear({.x = inner,
          .weight = &down.matrix(expert),
          .bias = args.down_bias ? args.down_bias + expert * down.rows : nullptr,
          .out = rows,
          .adapters = PointerTo(down_adapters)},
         slots);
}

// Calls body(t) for each row of x.
template <typename F>
void EachRow(const ExpertMixArgs& args, ThreadPool& pool, const F& body) {
  const double cost = kNsPerMovedElement * static_cast<double>(args.top_k * args.x.cols);
  pool.ForRange(args.x.rows, cost, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t t = begin; t < end; ++t) body(t);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuStack>> CpuStack::Pack(std::span<const WeightSource> sources,
                                                         int32_t count,
                                                         const LinearKernels& kernels,
                                                         ThreadPool& pool) {
  HEDDLE_RETURN_IF_ERROR(CheckStack(sources, count));
  auto stack = std::make_unique<CpuStack>();
  HEDDLE_ASSIGN_OR_RETURN(stack->all_, CpuWeight::Pack(sources, kernels, pool));
  stack->count = count;
  stack->rows = stack->all_->rows / count;
  stack->cols = stack->all_->cols;
  stack->bytes = stack->all_->bytes;
  const size_t each = sources.size() / static_cast<size_t>(count);
  for (size_t i = 0; i < sources.size(); i += each) {
    stack->matrices_.push_back(stack->all_->View(i, each));
  }
  return stack;
}

void Route(const RouteArgs& args, ThreadPool& pool) {
  HEDDLE_CHECK(args.logits.cols <= kMaxExperts && args.rule.n_groups <= kMaxExpertGroups,
               "route: too many experts or groups");
  const double cost = kNsPerExpertScore * static_cast<double>(args.logits.cols);
  pool.ForRange(args.logits.rows, cost, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t t = begin; t < end; ++t) RouteRow(args, t);
  });
}

void HeadLinear(const HeadLinearArgs& args, std::span<const int32_t> slots,
                const SlotLinear& linear, ThreadPool& pool) {
  const auto& heads = static_cast<const CpuStack&>(*args.heads);
  auto columns = [](const Tensor& tensor, int64_t first, int64_t cols) {
    return Tensor{tensor.row<float>(0) + first, tensor.rows, cols, tensor.stride};
  };
  for (int32_t h = 0; h < heads.count; ++h) {
    const std::optional<AdapterMatrix> adapters = MemberOf(args.adapters, h);
    linear({.x = columns(args.x, h * args.x_step, heads.cols),
            .weight = &heads.matrix(h),
            .out = columns(args.out, h * args.out_step + args.carried, heads.rows),
            .adapters = PointerTo(adapters)},
           slots);
  }
  if (args.carried == 0) return;
  const double cost = kNsPerMovedElement * static_cast<double>(heads.count * args.carried);
  pool.ForRange(args.x.rows, cost, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin * heads.count; i < end * heads.count; ++i) {
      const int64_t h = i % heads.count;
      const float* from = args.x.row<float>(i / heads.count) + h * args.x_step + heads.cols;
      std::copy_n(from, args.carried, args.out.row<float>(i / heads.count) + h * args.out_step);
    }
  });
}

void ExpertMix(const ExpertMixArgs& args, std::span<const int32_t> slots, const SlotLinear& linear,
               ThreadPool& pool, ExpertScratch& scratch) {
  SortByExpert(args, scratch);
  scratch.slots.clear();
  if (!slots.empty() && (args.up_adapters != nullptr || args.down_adapters != nullptr)) {
    scratch.slots.resize(scratch.place.size());
    for (size_t i = 0; i < scratch.place.size(); ++i) {
      if (scratch.place[i] == kElsewhere) continue;
      scratch.slots[static_cast<size_t>(scratch.place[i])] =
          slots[i / static_cast<size_t>(args.top_k)];
    }
  }
  EachRow(args, pool, [&](int64_t t) {
    for (int64_t i = t * args.top_k; i < (t + 1) * args.top_k; ++i) {
      if (scratch.place[i] == kElsewhere) continue;
      const float* const from = args.x.row<float>(t);
      float* const row = args.rows.row<float>(scratch.place[i]);
      const float weight = args.weighs_inputs ? args.weights[i] : 1.0f;
      for (int64_t c = 0; c < args.x.cols; ++c) row[c] = weight * from[c];
    }
  });
  for (int32_t expert = 0; expert < args.up->count; ++expert) {
    const int64_t begin = scratch.begin[static_cast<size_t>(expert)];
    const int64_t end = scratch.begin[static_cast<size_t>(expert) + 1];
    if (begin < end) RunExpert(args, expert, begin, end, scratch.slots, linear);
  }
  EachRow(args, pool, [&](int64_t t) {
    float* out = args.out.row<float>(t);
    if (!args.adds) std::fill_n(out, args.out.cols, 0.0f);
    for (int64_t i = t * args.top_k; i < (t + 1) * args.top_k; ++i) {
      if (scratch.place[i] == kElsewhere) continue;
      const float* row = args.rows.row<float>(scratch.place[i]);
      const float weight = args.weighs_inputs ? 1.0f : args.weights[i];
      for (int64_t c = 0; c < args.out.cols; ++c) out[c] += weight * row[c];
    }
  });
}

}  // namespace heddle::kernels::cpu
