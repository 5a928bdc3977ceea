// Mixtures of experts: routing, the experts' products, and their weighted sum. The choice of
// experts is known on the device only, so a step of one shape has the same launches whatever the
// router chooses. With BF16 activations the pairs are grouped by expert first, and every expert's
// weights are read once for each chunk of rows (linear_skinny.cuh); otherwise each (row, choice)
// pair reads its own expert.
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/weight_element.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 128;

struct RouteParams {
  RouteArgs args;
};

// The index of the first of the largest values, the same in every lane; it is made impossible to
// take again. A row of NaN gives the last index.
HEDDLE_DEVICE int TakeBest(Shared<float> values, int n) {
  float best = -Infinity();
  int index = n - 1;
  for (int i = Lane(); i < n; i += 32) {
    const float value = values.Get(i);
    if (value > best || i == Lane()) {
      best = value;
      index = i;
    }
  }
  const float max = WarpMax(best);
  // Indices are small: exact as floats.
  const float first = -WarpMax(best == max ? -static_cast<float>(index) : -Infinity());
  index = first < static_cast<float>(n) ? static_cast<int>(first) : n - 1;
  SyncWarp();
  if (Lane() == 0) values.Set(index, -Infinity());
  SyncWarp();
  return index;
}

HEDDLE_DEVICE void LoadScores(const RouteArgs& a, int64_t t, Shared<float> scores) {
  const int n = static_cast<int>(a.logits.cols);
  const float* logits = a.logits.row<float>(t);
  float max = -Infinity();
  for (int e = Lane(); e < n; e += 32) max = Max(max, logits[e]);
  max = WarpMax(max);
  const bool softmax = a.rule.score == RouteScore::kSoftmax;
  float sum = 0;
  for (int e = Lane(); e < n; e += 32) {
    const float score = softmax ? Exp(logits[e] - max) : 1.0f / (1.0f + Exp(-logits[e]));
    scores.Set(e, score);
    sum += score;
  }
  sum = WarpSum(sum);
  for (int e = Lane(); softmax && e < n; e += 32) scores.Set(e, scores.Get(e) / sum);
  SyncWarp();
}

// The sum of the best `count` of values [begin, begin + size).
HEDDLE_DEVICE float BestOf(Shared<float> values, int begin, int size, int count) {
  float sum = 0;
  float bound = Infinity();  // values taken so far are at least this, `ties` of them equal
  int ties = 0;
  for (int taken = 0; taken < count; ++taken) {
    float best = -Infinity();
    int equal = 0;
    for (int i = begin; i < begin + size; ++i) {
      const float value = values.Get(i);
      equal += value == bound ? 1 : 0;
      if (value < bound) best = Max(best, value);
    }
    if (equal > ties) {
      best = bound;
      ++ties;
    } else {
      ties = 1;
    }
    bound = best;
    sum += best;
  }
  return sum;
}

HEDDLE_DEVICE void KeepBestGroups(const RouteRule& rule, int n, Shared<float> choice,
                                  Shared<float> groups, Shared<float> kept) {
  const int size = n / rule.n_groups;
  for (int g = Lane(); g < rule.n_groups; g += 32) {
    groups.Set(g, BestOf(choice, g * size, size, rule.group_best));
    kept.Set(g, 0.0f);
  }
  SyncWarp();
  for (int i = 0; i < rule.top_groups; ++i) {
    const int best = TakeBest(groups, rule.n_groups);
    if (Lane() == 0) kept.Set(best, 1.0f);
  }
  SyncWarp();
  for (int e = Lane(); e < n; e += 32) {
    if (kept.Get(e / size) == 0.0f) choice.Set(e, -Infinity());
  }
  SyncWarp();
}

// One warp per row.
HEDDLE_KERNEL RouteKernel(HEDDLE_PARAMS(RouteParams, p)) {
  StartInTurn();
  const RouteArgs& a = p.args;
  const int n = static_cast<int>(a.logits.cols);
  const int64_t t = BlockX();
  SharedArena arena;
  Shared<float> scores = arena.Take<float>(n);
  Shared<float> choice = arena.Take<float>(n);
  Shared<float> groups = arena.Take<float>(a.rule.n_groups);
  Shared<float> kept = arena.Take<float>(a.rule.n_groups);
  LoadScores(a, t, scores);
  // Logits have the order of scores and stay apart where those round to the same number.
  const bool by_logits = a.choice_bias == nullptr && a.rule.n_groups == 1;
  for (int e = Lane(); e < n; e += 32) {
    const float bias = a.choice_bias != nullptr ? a.choice_bias[e] : 0.0f;
    choice.Set(e, (by_logits ? a.logits.row<float>(t)[e] : scores.Get(e)) + bias);
  }
  SyncWarp();
  if (a.rule.n_groups > 1) KeepBestGroups(a.rule, n, choice, groups, kept);
  float sum = 0;
  for (int i = 0; i < a.rule.top_k; ++i) {
    const int expert = TakeBest(choice, n);
    sum += scores.Get(expert);
    if (Lane() == 0) {
      a.experts[t * a.rule.top_k + i] = expert;
      a.weights[t * a.rule.top_k + i] = scores.Get(expert);
    }
  }
  if (Lane() != 0) return;
  const float factor = a.rule.renormalise ? a.rule.scale / (sum + a.rule.sum_offset) : a.rule.scale;
  for (int64_t i = t * a.rule.top_k; i < (t + 1) * a.rule.top_k; ++i) {
    const float own = a.expert_scale != nullptr ? a.expert_scale[a.experts[i]] : 1.0f;
    a.weights[i] = a.weights[i] * factor * own;
  }
}

// One warp per output of a (row, choice) pair.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL ExpertLinearKernel(HEDDLE_PARAMS(ExpertLinearParams, p)) {
  StartInTurn();
  const int64_t pair = BlockX();
  const int64_t r = static_cast<int64_t>(BlockY()) * kWarps + WarpIndex();
  const bool gated = p.linear.epilogue == Epilogue::kGated;
  if (r >= (gated ? p.linear.half : p.matrix_rows)) return;
  const int expert = p.experts[pair] - p.own.first;
  if (expert < 0 || expert >= p.own.count) return;
  const int64_t first = expert * p.matrix_rows;
  const T* x = p.linear.x.row<T>(pair / p.pairs_per_row);
  const float y = DotRow<T, kLayout>(p.linear.weight, x, first + r);
  const float up = gated ? DotRow<T, kLayout>(p.linear.weight, x, first + r + p.linear.half) : 0.0f;
  if (Lane() != 0) return;
  LinearParams own = p.linear;
  if (own.bias != nullptr) own.bias += first;
  if (own.bias_up != nullptr) own.bias_up += first;
  StoreOutput<T>(own, pair, r, y, up);
}

struct GroupParams {
  const int32_t* experts;
  int64_t n_pairs;
  int32_t first;  // of the experts that are here
  int32_t count;  // of those; pairs of others are group `count`, which has no chunks
  ExpertGroups groups;
};

HEDDLE_DEVICE int GroupOf(const GroupParams& p, int64_t pair) {
  const int expert = p.experts[pair] - p.first;
  return expert >= 0 && expert < p.count ? expert : p.count;
}

constexpr int kGroupThreads = 1024;

// Run by the first warp: finds where each expert's pairs begin, and its chunks. Lane l takes the
// experts from l * kShare on.
HEDDLE_DEVICE void PlaceExperts(const GroupParams& p, Shared<int32_t> counts,
                                Shared<int32_t> begins) {
  const int rows = p.groups.chunk_rows;
  const int share = (p.count + 31) / 32;
  const int first = Lane() * share;
  const int end = first + share < p.count ? first + share : p.count;
  int pairs = 0, chunks = 0;
  for (int e = first; e < end; ++e) {
    pairs += counts.Get(e);
    chunks += (counts.Get(e) + rows - 1) / rows;
  }
  int pairs_to = pairs, chunks_to = chunks;  // sums of all lanes up to this one
  for (int delta = 1; delta < 32; delta *= 2) {
    const int more_pairs = ShuffleUp(pairs_to, delta);
    const int more_chunks = ShuffleUp(chunks_to, delta);
    if (Lane() >= delta) {
      pairs_to += more_pairs;
      chunks_to += more_chunks;
    }
  }
  int at = pairs_to - pairs, chunk = chunks_to - chunks;
  for (int e = first; e < end; ++e) {
    begins.Set(e, at);
    for (int done = 0; done < counts.Get(e); done += rows) {
      const int left = counts.Get(e) - done;
      p.groups.chunks[chunk++] = {e, at + done, left < rows ? left : rows};
    }
    at += counts.Get(e);
  }
  if (Lane() != 31) return;
  begins.Set(p.count, pairs_to);
  *p.groups.n_chunks = chunks_to;
}

// Run by one block. The order of an expert's pairs is arbitrary: a row's result does not depend on
// it.
HEDDLE_KERNEL GroupKernel(HEDDLE_PARAMS(GroupParams, p)) {
  StartInTurn();
  SharedArena arena;
  Shared<int32_t> counts = arena.Take<int32_t>(p.count + 1);
  Shared<int32_t> begins = arena.Take<int32_t>(p.count + 1);
  for (int e = ThreadX(); e <= p.count; e += ThreadCount()) counts.Set(e, 0);
  SyncThreads();
  for (int64_t i = ThreadX(); i < p.n_pairs; i += ThreadCount()) counts.AtomicAdd(GroupOf(p, i), 1);
  SyncThreads();
  if (WarpIndex() == 0) PlaceExperts(p, counts, begins);
  SyncThreads();
  for (int64_t i = ThreadX(); i < p.n_pairs; i += ThreadCount()) {
    p.groups.pairs[begins.AtomicAdd(GroupOf(p, i), 1)] = static_cast<int32_t>(i);
  }
}

// The share of a block among several.
struct PairRange {
  int64_t begin, end;
  HEDDLE_DEVICE PairRange(const GroupParams& p) {
    begin = static_cast<int64_t>(BlockX()) * kGroupPairs;
    end = begin + kGroupPairs < p.n_pairs ? begin + kGroupPairs : p.n_pairs;
  }
};

// Run by the last block to have counted: from each block's number of pairs of an expert, where the
// block's pairs of that expert begin.
HEDDLE_DEVICE void PlaceBlocks(const GroupParams& p, Shared<int32_t> counts,
                               Shared<int32_t> begins) {
  int32_t* of_blocks = p.groups.block_counts;
  const int groups = p.count + 1;
  for (int e = ThreadX(); e < groups; e += ThreadCount()) {
    int32_t sum = 0;
    for (int b = 0; b < GridX(); ++b) sum += of_blocks[b * groups + e];
    counts.Set(e, sum);
  }
  SyncThreads();
  if (WarpIndex() == 0) PlaceExperts(p, counts, begins);
  SyncThreads();
  for (int e = ThreadX(); e < groups; e += ThreadCount()) {
    int32_t at = begins.Get(e);
    for (int b = 0; b < GridX(); ++b) {
      const int32_t own = of_blocks[b * groups + e];
      of_blocks[b * groups + e] = at;
      at += own;
    }
  }
}

// The first of two launches for many pairs: every block counts its own, the last one places all.
HEDDLE_KERNEL GroupCountKernel(HEDDLE_PARAMS(GroupParams, p)) {
  StartInTurn();
  SharedArena arena;
  const int groups = p.count + 1;
  Shared<int32_t> counts = arena.Take<int32_t>(groups);
  Shared<int32_t> begins = arena.Take<int32_t>(groups);
  Shared<int32_t> order = arena.Take<int32_t>(1);
  const PairRange own(p);
  for (int e = ThreadX(); e < groups; e += ThreadCount()) counts.Set(e, 0);
  SyncThreads();
  for (int64_t i = own.begin + ThreadX(); i < own.end; i += ThreadCount()) {
    counts.AtomicAdd(GroupOf(p, i), 1);
  }
  SyncThreads();
  for (int e = ThreadX(); e < groups; e += ThreadCount()) {
    p.groups.block_counts[static_cast<int64_t>(BlockX()) * groups + e] = counts.Get(e);
  }
  FenceDevice();
  SyncThreads();
  if (ThreadX() == 0) order.Set(0, AtomicAddGlobal(p.groups.counter, 1));
  SyncThreads();
  if (order.Get(0) != GridX() - 1) return;
  FenceDevice();
  if (ThreadX() == 0) *p.groups.counter = 0;
  PlaceBlocks(p, counts, begins);
}

// The second: every block puts its pairs in their places.
HEDDLE_KERNEL GroupPlaceKernel(HEDDLE_PARAMS(GroupParams, p)) {
  StartInTurn();
  SharedArena arena;
  const int groups = p.count + 1;
  Shared<int32_t> begins = arena.Take<int32_t>(groups);
  const PairRange own(p);
  for (int e = ThreadX(); e < groups; e += ThreadCount()) {
    begins.Set(e, p.groups.block_counts[static_cast<int64_t>(BlockX()) * groups + e]);
  }
  SyncThreads();
  for (int64_t i = own.begin + ThreadX(); i < own.end; i += ThreadCount()) {
    p.groups.pairs[begins.AtomicAdd(GroupOf(p, i), 1)] = static_cast<int32_t>(i);
  }
}

struct SumParams {
  Tensor rows;
  const float* weights;
  const int32_t* experts;
  OwnExperts own;  // rows of others were not computed
  int32_t top_k;
  int32_t adds;  // to out, which else counts as zero
  Tensor out;
};

// BlockX: a row. BlockY: kThreads groups of kWidth columns, one for each thread. The loads of
// kChoices choices are in flight together; sums are in the order of the choices.
template <typename T, int kWidth>
HEDDLE_KERNEL ExpertSumKernel(HEDDLE_PARAMS(SumParams, p)) {
  constexpr int kChoices = 4;
  StartInTurn();
  const int64_t t = BlockX();
  const int64_t c = (static_cast<int64_t>(BlockY()) * kThreads + ThreadX()) * kWidth;
  if (c >= p.out.cols) return;
  T* out = p.out.row<T>(t) + c;
  Group<T, kWidth> sums = {};
  if (p.adds != 0) sums = LoadGroup<kWidth>(out);
  float sum[kWidth];
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) sum[j] = ToFloat(sums.item[j]);
  for (int first = 0; first < p.top_k; first += kChoices) {
    Group<T, kWidth> row[kChoices];
    float weight[kChoices];
    bool is_here[kChoices];
    HEDDLE_UNROLL
    for (int i = 0; i < kChoices; ++i) {
      const int choice = first + i < p.top_k ? first + i : first;
      const int64_t pair = t * p.top_k + choice;
      const int expert = p.experts[pair] - p.own.first;
      is_here[i] = first + i < p.top_k && expert >= 0 && expert < p.own.count;
      weight[i] = p.weights == nullptr ? 1.0f : p.weights[pair];
      row[i] = LoadGroup<kWidth>(p.rows.row<T>(pair) + c);
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kChoices; ++i) {
      if (!is_here[i]) continue;
      HEDDLE_UNROLL
      for (int j = 0; j < kWidth; ++j) sum[j] += weight[i] * ToFloat(row[i].item[j]);
    }
  }
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) sums.item[j] = RoundTo(sum[j], T());
  StoreGroup(out, sums);
}

// Whether rows can be moved 16 bytes at a time.
template <typename T>
bool IsWide(const Tensor& x) {
  constexpr int kWidth = 16 / sizeof(T);
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kWidth == 0 &&
         x.cols % kWidth == 0;
}

struct HeadLinearParams {
  HeadLinearArgs args;
  DeviceWeight heads;  // all matrices
  int64_t rows;        // rows of each matrix
};

// One warp per output of a head, including the carried columns.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL HeadLinearKernel(HEDDLE_PARAMS(HeadLinearParams, p)) {
  StartInTurn();
  const int64_t t = BlockX();
  const int64_t c = static_cast<int64_t>(BlockY()) * kWarps + WarpIndex();
  const int64_t h = BlockZ();
  if (c >= p.args.carried + p.rows) return;
  const T* x = p.args.x.row<T>(t) + h * p.args.x_step;
  T* out = p.args.out.row<T>(t) + h * p.args.out_step;
  if (c < p.args.carried) {
    if (Lane() == 0) out[c] = x[p.heads.cols + c];
    return;
  }
  const float y = DotRow<T, kLayout>(p.heads, x, h * p.rows + c - p.args.carried);
  if (Lane() == 0) out[c] = RoundTo(y, T());
}

struct GateParams {
  Tensor gate;
  Tensor x;
};

template <typename T>
HEDDLE_KERNEL GateRowsKernel(HEDDLE_PARAMS(GateParams, p)) {
  StartInTurn();
  const float factor = 1.0f / (1.0f + Exp(-*p.gate.row<float>(BlockX())));
  T* x = p.x.row<T>(BlockX());
  for (int64_t c = ThreadX(); c < p.x.cols; c += ThreadCount()) {
    x[c] = RoundTo(ToFloat(x[c]) * factor, T());
  }
}

}  // namespace

Error LaunchRoute(const RouteArgs& args, Stream stream) {
  const int n = static_cast<int>(args.logits.cols);
  const LaunchShape shape = {
      .grid_x = static_cast<int>(args.logits.rows),
      .threads = 32,
      .shared_bytes = 2 * SharedBytesFor<float>(n) + 2 * SharedBytesFor<float>(args.rule.n_groups)};
  return Launch(RouteKernel, shape, stream, RouteParams{args});
}

Error LaunchExpertLinear(const ExpertLinearParams& params, int64_t n_pairs, DType act,
                         Stream stream) {
  const bool gated = params.linear.epilogue == Epilogue::kGated;
  const LaunchShape shape = {
      .grid_x = static_cast<int>(n_pairs),
      .grid_y = CeilDiv(gated ? params.linear.half : params.matrix_rows, kWarps),
      .threads = 32 * kWarps};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(params.linear.weight.layout, [&]<WeightLayout kLayout>() {
      return Launch(ExpertLinearKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchGroupExperts(const int32_t* experts, int64_t n_pairs, const OwnExperts& own,
                         const ExpertGroups& groups, Stream stream) {
  const GroupParams params = {experts, n_pairs, own.first, own.count, groups};
  const int arrays = 2 * SharedBytesFor<int32_t>(own.count + 1);
  if (groups.block_counts == nullptr) {
    const int threads = n_pairs < 256 && own.count < 256 ? 256 : kGroupThreads;
    return Launch(GroupKernel, {.threads = threads, .shared_bytes = arrays}, stream, params);
  }
  const LaunchShape shape = {.grid_x = CeilDiv(n_pairs, kGroupPairs),
                             .threads = kGroupThreads,
                             .shared_bytes = arrays + SharedBytesFor<int32_t>(1)};
  if (const Error error = Launch(GroupCountKernel, shape, stream, params); error != kSuccess) {
    return error;
  }
  return Launch(GroupPlaceKernel, shape, stream, params);
}

Error LaunchExpertSum(Tensor rows, const float* weights, const int32_t* experts,
                      const OwnExperts& own, int32_t top_k, Tensor out, bool adds, DType act,
                      Stream stream) {
  const SumParams params = {rows, weights, experts, own, top_k, adds ? 1 : 0, out};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWidth = 16 / sizeof(T);
    const bool wide = IsWide<T>(rows) && IsWide<T>(out);
    const LaunchShape shape = {.grid_x = static_cast<int>(out.rows),
                               .grid_y = CeilDiv(out.cols, kThreads * (wide ? kWidth : 1)),
                               .threads = kThreads};
    return wide ? Launch(ExpertSumKernel<T, kWidth>, shape, stream, params)
                : Launch(ExpertSumKernel<T, 1>, shape, stream, params);
  });
}

Error LaunchHeadLinear(const HeadLinearArgs& args, const DeviceWeight& heads, DType act,
                       Stream stream) {
  const LaunchShape shape = {.grid_x = static_cast<int>(args.x.rows),
                             .grid_y = CeilDiv(args.carried + args.heads->rows, kWarps),
                             .grid_z = args.heads->count,
                             .threads = 32 * kWarps};
  const HeadLinearParams params = {args, heads, args.heads->rows};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(heads.layout, [&]<WeightLayout kLayout>() {
      return Launch(HeadLinearKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchGateRows(Tensor gate_f32, Tensor x, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = static_cast<int>(x.rows), .threads = kThreads};
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(GateRowsKernel<T>, shape, stream, GateParams{gate_f32, x});
  });
}

}  // namespace heddle::kernels::cuda
