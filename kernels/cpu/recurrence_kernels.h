// Kernels for recurrences on Vec. Each element of a result is summed in an order of its own, which
// does not depend on the rows that are computed with it.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/recurrence_math.h"
#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/selective_kernels.h"
#include "kernels/cpu/vec/vec_tail.h"

namespace heddle::kernels::cpu {
namespace {

// out[r] = scale * add[r] + the sum over d < depth of x[r][d] * m[d], d ascending.
struct ProductArgs {
  const float* const* x;  // or, turned, [depth]: x[d][r]
  const float* m;         // [depth, cols]
  int32_t depth;
  int64_t cols;
  const float* add;  // [rows, cols] or nullptr
  float scale;
  float* out;  // [rows, cols]
};

// Asks for V vectors that are read soon.
template <int V>
inline void Prefetch(const float* begin) {
  constexpr int kLineFloats = 16;
  for (int i = 0; i < V * kLanes; i += kLineFloats) __builtin_prefetch(begin + i);
}

// The depth of a product that is summed at a time.
struct Depth {
  int32_t begin;
  int32_t end;
};

// R rows of V vectors at column c; the last vector has `lanes` elements. kPart: sums of an earlier
// part of the depth are in args.out, and what lies behind this one is asked for.
template <int R, int V, bool kTurned, bool kPart>
inline void ProductTile(const ProductArgs& args, int32_t row, int64_t c, int lanes, Depth depth) {
  const auto load = [&](const float* p, int v) {
    return v + 1 < V ? Load(p + v * kLanes) : LoadUpTo(p + v * kLanes, lanes);
  };
  Vec acc[R][V];
  for (int r = 0; r < R; ++r) {
    const int64_t at = (row + r) * args.cols + c;
    for (int v = 0; v < V; ++v) {
      if (kPart && depth.begin > 0) {
        acc[r][v] = load(args.out + at, v);
      } else {
        acc[r][v] = args.add == nullptr ? Zero() : Set(args.scale) * load(args.add + at, v);
      }
    }
  }
  for (int32_t d = depth.begin; d < depth.end; ++d) {
    if (kPart) Prefetch<V>(args.m + (d + depth.end - depth.begin) * args.cols + c);
    Vec m[V];
    for (int v = 0; v < V; ++v) m[v] = load(args.m + d * args.cols + c, v);
    for (int r = 0; r < R; ++r) {
      const Vec x = Set(kTurned ? args.x[d][row + r] : args.x[row + r][d]);
      for (int v = 0; v < V; ++v) acc[r][v] = Fma(x, m[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      StoreUpTo(args.out + (row + r) * args.cols + c + v * kLanes, acc[r][v],
                v + 1 < V ? kLanes : lanes);
    }
  }
}

// R rows over all columns: V vectors at a time, then V / 2, then single ones.
template <int R, int V, bool kTurned, bool kPart>
inline void ProductAcross(const ProductArgs& args, int32_t row, Depth depth) {
  int64_t c = 0;
  for (; c + V * kLanes <= args.cols; c += V * kLanes) {
    ProductTile<R, V, kTurned, kPart>(args, row, c, kLanes, depth);
  }
  if (V > 2 && c + V / 2 * kLanes <= args.cols) {
    ProductTile<R, V / 2, kTurned, kPart>(args, row, c, kLanes, depth);
    c += V / 2 * kLanes;
  }
  for (; c < args.cols; c += kLanes) {
    ProductTile<R, 1, kTurned, kPart>(args, row, c, LanesAt(c, args.cols), depth);
  }
}

template <int R, int V, bool kTurned = false>
inline void ProductRows(const ProductArgs& args, int32_t row) {
  ProductAcross<R, V, kTurned, false>(args, row, {0, args.depth});
}

// Few rows: m may come from memory, and is read in the order in which it lies there. Where
// registers do not hold sums of all columns, they take in some rows of m at a time.
template <int R, int V>
inline void ProductFewRows(const ProductArgs& args, int32_t row) {
  constexpr int32_t kRowsAtATime = 16;
  if (args.cols <= V * kLanes) return ProductRows<R, V>(args, row);
  for (int32_t d = 0; d < args.depth; d += kRowsAtATime) {
    const int32_t end = d + kRowsAtATime < args.depth ? d + kRowsAtATime : args.depth;
    ProductAcross<R, V, false, true>(args, row, {d, end});
  }
}

inline void Product(const ProductArgs& args, int32_t rows) {
  constexpr int kPairWidth = kLanes == 16 ? 8 : 4;  // vectors that two rows read at a time
  int32_t row = 0;
  for (; row + kMaxFloatTile <= rows; row += kMaxFloatTile) {
    ProductRows<kMaxFloatTile, 2>(args, row);
  }
  if (kMaxFloatTile > 8 && row + 8 <= rows) {
    ProductRows<8, 2>(args, row);
    row += 8;
  }
  if (kMaxFloatTile > 4 && row + 4 <= rows) {
    ProductRows<4, 2>(args, row);
    row += 4;
  }
  for (; row + 2 <= rows; row += 2) ProductFewRows<2, kPairWidth>(args, row);
  if (row < rows) ProductFewRows<1, 8>(args, row);
}

// Sums of a channel's taps, behind SiLU. kTaps: none of so many inputs is missing; 0: args.taps of
// them, of which some may be nullptr.
template <int kTaps>
inline Vec Convolve(const MixRowArgs& args, int64_t i, int lanes) {
  Vec sum = args.bias ? LoadUpTo(args.bias + i, lanes) : Zero();
  const int32_t taps = kTaps > 0 ? kTaps : args.taps;
#pragma GCC unroll 4
  for (int32_t j = 0; j < taps; ++j) {
    if (kTaps == 0 && !args.inputs[j]) continue;
    sum = Fma(LoadUpTo(args.weight + j * args.weight_stride + i, lanes),
              LoadUpTo(args.inputs[j] + i, lanes), sum);
  }
  return Silu(sum);
}

template <int kTaps>
inline Vec ConvolveRow(const MixRowArgs& args) {
  Vec squares = Zero();
  for (int64_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    const Vec sum = Convolve<kTaps>(args, i, lanes);
    squares = Fma(sum, sum, squares);
    StoreUpTo(args.out + i, sum, lanes);
  }
  return squares;
}

inline void MixRow(const MixRowArgs& args) {
  constexpr int kUsualTaps = 4;
  bool usual = args.taps == kUsualTaps;
  for (int32_t j = 0; j < args.taps; ++j) usual = usual && args.inputs[j];
  const Vec squares = usual ? ConvolveRow<kUsualTaps>(args) : ConvolveRow<0>(args);
  if (args.eps == 0) return;
  const Vec factor = Set(args.scale / __builtin_sqrtf(ReduceAdd(squares) + args.eps));
  for (int64_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    StoreUpTo(args.out + i, LoadUpTo(args.out + i, lanes) * factor, lanes);
  }
}

inline void StepRow(const StepRowArgs& args) {
  for (int32_t i = 0; i < args.n; i += kLanes) {
    const int lanes = LanesAt(i, args.n);
    Vec step = Softplus(LoadUpTo(args.steps + i, lanes) + LoadUpTo(args.bias + i, lanes));
    if (args.betas) {
      StoreUpTo(args.gains + i, Sigmoid(LoadUpTo(args.betas + i, lanes)), lanes);
    } else {
      // The last operand is what x86 returns of NaN, which thus stays one.
      step = Min(Set(args.max_step), Max(Set(args.min_step), step));
      StoreUpTo(args.gains + i, step, lanes);
    }
    StoreUpTo(args.decays + i, LoadUpTo(args.decay + i, lanes) * step, lanes);
  }
}

// Sums of the lanes of kLanes vectors, each as a tree of halves.
inline Vec SumsOfLanes(Vec (&rows)[kLanes]) {
  float columns[kLanes * kLanes];
  TransposeTo(rows, columns, kLanes);
  Vec sums[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sums[i] = Load(columns + i * kLanes);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  }
  return sums[0];
}

// A lane sums every kLanes-th product; R rows with four keys are so many chains of sums.
template <int R>
inline void DotsOf(const DotArgs& args) {
  constexpr int kKeys = 4;
  static_assert(kPartRows % kKeys == 0);
  alignas(64) float sums[R][kPartRows * kLanes];
  for (int j = 0; j < args.n_keys; j += kKeys) {
    const float* keys[kKeys];
    for (int i = 0; i < kKeys; ++i) {
      keys[i] = args.keys[j + i < args.n_keys ? j + i : args.n_keys - 1];
    }
    Vec acc[R][kKeys];
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kKeys; ++i) acc[r][i] = Zero();
    }
    for (int32_t d = 0; d < args.dim; d += kLanes) {
      const int lanes = LanesAt(d, args.dim);
      Vec key[kKeys];
      for (int i = 0; i < kKeys; ++i) key[i] = LoadUpTo(keys[i] + d, lanes);
      for (int r = 0; r < R; ++r) {
        const Vec x = LoadUpTo(args.rows[r] + d, lanes);
        for (int i = 0; i < kKeys; ++i) acc[r][i] = Fma(x, key[i], acc[r][i]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kKeys; ++i) Store(sums[r] + (j + i) * kLanes, acc[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < kPartRows; j += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = j + i < args.n_keys ? Load(sums[r] + (j + i) * kLanes) : Zero();
      }
      Store(args.out + r * kPartRows + j, SumsOfLanes(block));
    }
  }
}

inline void Dots(const DotArgs& args) { args.n_rows == 2 ? DotsOf<2>(args) : DotsOf<1>(args); }

// to[j] = exp(last - decays[j]), by which what was added at j has decayed; decays descend up to
// `last`, and those behind it do not count.
inline void DecaySince(const float* decays, float last, float* to) {
  for (int j = 0; j < kPartRows; j += kLanes) {
    Store(to + j, ExpOfNegative(Min(Set(last) - Load(decays + j), Zero())));
  }
}

// Coefficients of a row: of the state, and of the updates before it in its own update and output.
struct RowFactors {
  float decay;
  const float* in_update;  // [kPartRows]
  const float* in_output;  // [kPartRows]
};

// u and o of row i at V vectors of columns from c on, from the state's products with k and q; the
// last vector has `lanes` elements.
template <int V, bool kDelta>
inline void ScanColumns(const ScanArgs& args, int32_t i, const RowFactors& factors,
                        const float* of_key, const float* of_query, int64_t c, int lanes) {
  const auto load = [&](const float* p, int v) {
    return v + 1 < V ? Load(p + c + v * kLanes) : LoadUpTo(p + c + v * kLanes, lanes);
  };
  const auto store = [&](float* p, int v, Vec x) {
    StoreUpTo(p + c + v * kLanes, x, v + 1 < V ? kLanes : lanes);
  };
  const int32_t at = args.first + i;
  const Vec decay = Set(factors.decay);
  Vec seen[V], out[V];
  for (int v = 0; v < V; ++v) {
    seen[v] = kDelta ? decay * load(of_key, v) : Zero();
    out[v] = decay * load(of_query, v);
  }
  const float* update = args.updates;
  for (int32_t j = 0; j < at; ++j, update += args.value_dim) {
    const Vec in_update = Set(factors.in_update[j]), in_output = Set(factors.in_output[j]);
    for (int v = 0; v < V; ++v) {
      const Vec u = load(update, v);
      if (kDelta) seen[v] = Fma(in_update, u, seen[v]);
      out[v] = Fma(in_output, u, out[v]);
    }
  }
  const Vec gain = Set(args.gains[i]), own = Set(factors.in_output[at]), skip = Set(args.skip);
  for (int v = 0; v < V; ++v) {
    const Vec value = load(args.value_rows[i], v);
    const Vec u = gain * (value - seen[v]);
    store(args.updates + at * int64_t{args.value_dim}, v, u);
    store(args.out[i], v, Fma(skip, value, Fma(own, u, out[v])));
  }
}

template <bool kDelta>
inline void ScanRow(const ScanArgs& args, int32_t i, const RowFactors& factors, const float* of_key,
                    const float* of_query) {
  constexpr int kVectors = 4;
  int64_t c = 0;
  for (; c + kVectors * kLanes <= args.value_dim; c += kVectors * kLanes) {
    ScanColumns<kVectors, kDelta>(args, i, factors, of_key, of_query, c, kLanes);
  }
  for (; c < args.value_dim; c += kLanes) {
    ScanColumns<1, kDelta>(args, i, factors, of_key, of_query, c, LanesAt(c, args.value_dim));
  }
}

// The sums of g, and to[i] = exp of row i's.
inline void SumDecays(const ScanArgs& args, float* to) {
  float sum = args.first == 0 ? 0.0f : args.decays[args.first - 1];
  for (int32_t i = 0; i < args.rows; ++i) args.decays[args.first + i] = sum += args.steps[i];
  for (int32_t j = args.first + args.rows; j < kPartRows; ++j) args.decays[j] = sum;
  for (int j = 0; j < kPartRows; j += kLanes) {
    Store(to + j, ExpOfNegative(Load(args.decays + j)));
  }
}

template <bool kDelta>
inline void ScanPart(const ScanArgs& args) {
  const float* x[2 * kPartRows];
  const int32_t of_keys = kDelta ? args.rows : 0;  // rows of k among x, before those of q
  for (int32_t i = 0; i < of_keys; ++i) x[i] = args.key_rows[i];
  for (int32_t i = 0; i < args.rows; ++i) x[of_keys + i] = args.query_rows[i];
  float* of_state = args.scratch;
  Product({x, args.state, args.key_dim, args.value_dim, nullptr, 0, of_state}, of_keys + args.rows);
  alignas(64) float whole[kPartRows], since[kPartRows], in_update[kPartRows], in_output[kPartRows];
  SumDecays(args, whole);
  for (int32_t i = 0; i < args.rows; ++i) {
    const int32_t at = args.first + i;
    DecaySince(args.decays, args.decays[at], since);
    const float* with_query = args.dots[i] + (kDelta ? kPartRows : 0);
    for (int j = 0; j < kPartRows; j += kLanes) {
      const Vec factor = Load(since + j);
      Store(in_output + j, factor * Load(with_query + j));
      if (kDelta) Store(in_update + j, factor * Load(args.dots[i] + j));
    }
    ScanRow<kDelta>(args, i, {whole[at], in_update, in_output},
                    of_state + i * int64_t{args.value_dim},
                    of_state + (of_keys + i) * int64_t{args.value_dim});
  }
}

inline void Scan(const ScanArgs& args) {
  args.delta ? ScanPart<true>(args) : ScanPart<false>(args);
}

inline void Fold(const FoldArgs& args) {
  const float last = args.decays[kPartRows - 1];
  alignas(64) float since[kPartRows];
  DecaySince(args.decays, last, since);
  float whole[kLanes];
  Store(whole, ExpOfNegative(Set(last)));
  for (int64_t j = 0; j < kPartRows; ++j) {
    const Vec factor = Set(since[j]);
    for (int64_t c = 0; c < args.value_dim; c += kLanes) {
      const int lanes = LanesAt(c, args.value_dim);
      const int64_t at = j * args.value_dim + c;
      StoreUpTo(args.scratch + at, factor * LoadUpTo(args.updates + at, lanes), lanes);
    }
  }
  const ProductArgs product = {args.keys,  args.scratch, kPartRows, args.value_dim,
                               args.state, whole[0],     args.out};
  // Rows of S whole, as they lie in memory.
  constexpr int kWidth = kLanes == 16 ? 8 : 4;
  int32_t d = 0;
  for (; d + 2 <= args.key_dim; d += 2) ProductRows<2, kWidth, true>(product, d);
  if (d < args.key_dim) ProductRows<1, kWidth, true>(product, d);
}

inline void GateRow(const GateRowArgs& args) {
  for (int64_t begin = 0; begin < args.dim; begin += args.width) {
    float* x = args.row + begin;
    const float* z = args.gate + begin;
    const float* weight = args.norm_per_value ? args.norm + begin : args.norm;
    Vec squares = Zero();
    for (int64_t i = 0; i < args.width; i += kLanes) {
      const int lanes = LanesAt(i, args.width);
      Vec v = LoadUpTo(x + i, lanes);
      if (args.gates_first) {
        v = v * Silu(LoadUpTo(z + i, lanes));
        StoreUpTo(x + i, v, lanes);
      }
      squares = Fma(v, v, squares);
    }
    const float mean = ReduceAdd(squares) / static_cast<float>(args.width);
    const Vec factor = Set(args.norm ? 1.0f / __builtin_sqrtf(mean + args.eps) : 1.0f);
    for (int64_t i = 0; i < args.width; i += kLanes) {
      const int lanes = LanesAt(i, args.width);
      Vec v = LoadUpTo(x + i, lanes) * factor;
      if (args.norm) v = v * LoadUpTo(weight + i, lanes);
      if (!args.gates_first) v = v * Silu(LoadUpTo(z + i, lanes));
      StoreUpTo(x + i, v, lanes);
    }
  }
}

inline void GateElements(const float* gate, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = LanesAt(i, n);
    StoreUpTo(x + i, LoadUpTo(x + i, lanes) * Sigmoid(LoadUpTo(gate + i, lanes)), lanes);
  }
}

constexpr RecurrenceKernels kRecurrenceKernels = {MixRow, StepRow, Dots,         Scan,
                                                  Fold,   GateRow, GateElements, SelectRows};

}  // namespace
}  // namespace heddle::kernels::cpu
