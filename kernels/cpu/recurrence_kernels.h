// Kernels for recurrences on Vec. Each element of a result is summed in an order of its own, which
// does not depend on the rows that are computed with it.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/vec/vec_tail.h"

namespace heddle::kernels::cpu {
namespace {

// out[r] = scale * add[r] + the sum over d < depth of x[r][d] * m[d], d ascending.
struct ProductArgs {
  const float* const* x;
  const float* m;  // [depth, cols]
  int32_t depth;
  int64_t cols;
  const float* add;  // [rows, cols] or nullptr
  float scale;
  float* out;  // [rows, cols]
};

// Rows [begin, end) of m for R rows of V vectors at column c; the last vector has `lanes` elements.
// kGoesOn: sums that began with earlier rows of m are in args.out.
template <int R, int V, bool kGoesOn>
inline void ProductTile(const ProductArgs& args, int32_t row, int64_t c, int lanes, int32_t begin,
                        int32_t end) {
  const auto load = [&](const float* p, int v) {
    return v + 1 < V ? Load(p + v * kLanes) : LoadUpTo(p + v * kLanes, lanes);
  };
  Vec acc[R][V];
  for (int r = 0; r < R; ++r) {
    const int64_t at = (row + r) * args.cols + c;
    for (int v = 0; v < V; ++v) {
      if constexpr (kGoesOn) {
        acc[r][v] = load(args.out + at, v);
      } else {
        acc[r][v] = args.add == nullptr ? Zero() : Set(args.scale) * load(args.add + at, v);
      }
    }
  }
  for (int32_t d = begin; d < end; ++d) {
    Vec m[V];
    for (int v = 0; v < V; ++v) m[v] = load(args.m + d * args.cols + c, v);
    for (int r = 0; r < R; ++r) {
      const Vec x = Set(args.x[row + r][d]);
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
template <int R, int V, bool kGoesOn = false>
inline void ProductRows(const ProductArgs& args, int32_t row, int32_t begin, int32_t end) {
  int64_t c = 0;
  for (; c + V * kLanes <= args.cols; c += V * kLanes) {
    ProductTile<R, V, kGoesOn>(args, row, c, kLanes, begin, end);
  }
  if (V > 2 && c + V / 2 * kLanes <= args.cols) {
    ProductTile<R, V / 2, kGoesOn>(args, row, c, kLanes, begin, end);
    c += V / 2 * kLanes;
  }
  for (; c < args.cols; c += kLanes) {
    ProductTile<R, 1, kGoesOn>(args, row, c, LanesAt(c, args.cols), begin, end);
  }
}

// Asks for memory that is read soon.
inline void Prefetch(const float* begin, int64_t floats) {
  constexpr int64_t kLineFloats = 16;
  for (int64_t i = 0; i < floats; i += kLineFloats) __builtin_prefetch(begin + i);
}

// Few rows: m comes from memory, so that it is read in the order in which it lies there, some rows
// at a time, while those behind them are on their way; behind the last ones lies the next head's.
template <int R, int V>
inline void ProductFewRows(const ProductArgs& args, int32_t row) {
  constexpr int32_t kBlock = 16;
  for (int32_t begin = 0; begin < args.depth; begin += kBlock) {
    const int32_t end = begin + kBlock < args.depth ? begin + kBlock : args.depth;
    Prefetch(args.m + end * args.cols, kBlock * args.cols);
    begin > 0 ? ProductRows<R, V, true>(args, row, begin, end)
              : ProductRows<R, V>(args, row, begin, end);
  }
}

inline void Product(const ProductArgs& args, int32_t rows) {
  int32_t row = 0;
  for (; row + kMaxFloatTile <= rows; row += kMaxFloatTile) {
    ProductRows<kMaxFloatTile, 2>(args, row, 0, args.depth);
  }
  if (kMaxFloatTile > 8 && row + 8 <= rows) {
    ProductRows<8, 2>(args, row, 0, args.depth);
    row += 8;
  }
  if (kMaxFloatTile > 4 && row + 4 <= rows) {
    ProductRows<4, 2>(args, row, 0, args.depth);
    row += 4;
  }
  constexpr int kPairWidth = kLanes == 16 ? 8 : 4;  // vectors that two rows read at a time
  for (; row + 2 <= rows; row += 2) ProductFewRows<2, kPairWidth>(args, row);
  if (row < rows) ProductFewRows<1, 8>(args, row);
}

// 2^x of x <= 0; NaN stays NaN. x is a whole number and an exact rest of up to 1/2, whose power is
// a polynomial of degree 5 by our own minimax fit, with the value 1 at 0, so that what decays
// slowly keeps its size: relative error 9e-8, 1.7e-7 in F32. Results under 2^-125 become 0.
inline Vec PowerOfTwo(Vec x) {
  const Vec magic = Set(0x1.8p23f);  // adding it rounds to an integer in the low bits
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p = Fma(Set(0x1.5bba14p-10f), r, Set(0x1.3cea88p-7f));
  p = Fma(p, r, Set(0x1.c6b752p-5f));
  p = Fma(p, r, Set(0x1.ebf9bcp-3f));
  p = Fma(p, r, Set(0x1.62e42ap-1f));
  p = Fma(p, r, Set(1.0f));
  const Vec y = FromBits(WrappingAdd(Bits(p), Bits(shifted) << 23));
  return x < Set(-125.0f) ? Zero() : y;
}

constexpr float kLog2OfE = 0x1.715476p0f;

// x / (1 + e^-x). The power is one of -|x|: of a negative x it is the numerator, too.
inline Vec Silu(Vec x) {
  const Vec power = PowerOfTwo(Abs(x) * Set(-kLog2OfE));
  const Vec numerator = x < Zero() ? power : Set(1.0f);
  return x * (numerator / (Set(1.0f) + power));
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

// to[j] = exp(last - decays[j]), by which what was added at j has decayed.
inline void DecaySince(const float* decays, float last, float* to) {
  for (int j = 0; j < kPartRows; j += kLanes) Store(to + j, Exp(Set(last) - Load(decays + j)));
}

// Coefficients of the updates before row `at` in its own update and output.
struct RowFactors {
  float decay;  // of the state
  float in_update[kPartRows];
  float in_output[kPartRows];
};

// u and o of row `at` of the part, from the state's products with k and q.
inline void ScanRow(const ScanArgs& args, int32_t i, const RowFactors& factors, const float* of_key,
                    const float* of_query) {
  const int32_t at = args.first + i;
  const int64_t n = args.value_dim;
  const float* value = args.value_rows[i];
  float* update = args.updates + at * n;
  const Vec decay = Set(factors.decay);
  const Vec gain = Set(args.gains[i]);
  for (int64_t c = 0; c < n; c += kLanes) {
    const int lanes = LanesAt(c, n);
    Vec seen = args.delta ? decay * LoadUpTo(of_key + c, lanes) : Zero();
    Vec out = decay * LoadUpTo(of_query + c, lanes);
    for (int32_t j = 0; j < at; ++j) {
      const Vec u = LoadUpTo(args.updates + j * n + c, lanes);
      if (args.delta) seen = Fma(Set(factors.in_update[j]), u, seen);
      out = Fma(Set(factors.in_output[j]), u, out);
    }
    const Vec v = LoadUpTo(value + c, lanes);
    const Vec u = gain * (v - seen);
    StoreUpTo(update + c, u, lanes);
    out = Fma(Set(factors.in_output[at]), u, out);
    StoreUpTo(args.out[i] + c, Fma(Set(args.skip), v, out), lanes);
  }
}

// Columns `first` to first + rows of placed_keys become the rows' keys; those of whole parts by
// blocks of as many rows as a vector has lanes.
inline void PlaceKeys(const ScanArgs& args) {
  int32_t d = 0;
  for (; args.rows == kPartRows && d + kLanes <= args.key_dim; d += kLanes) {
    for (int32_t j = 0; j < kPartRows; j += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = Load(args.key_rows[j + i] + d);
      TransposeTo(block, args.placed_keys + int64_t{d} * kPartRows + j, kPartRows);
    }
  }
  for (; d < args.key_dim; ++d) {
    float* to = args.placed_keys + int64_t{d} * kPartRows + args.first;
    for (int32_t i = 0; i < args.rows; ++i) to[i] = args.key_rows[i][d];
  }
}

inline void Scan(const ScanArgs& args) {
  if (args.placed_keys) PlaceKeys(args);
  const float* x[2 * kPartRows];
  const int32_t of_keys = args.delta ? args.rows : 0;  // rows of k among x, before those of q
  for (int32_t i = 0; i < of_keys; ++i) x[i] = args.key_rows[i];
  for (int32_t i = 0; i < args.rows; ++i) x[of_keys + i] = args.query_rows[i];
  const int32_t rows = of_keys + args.rows;
  float* of_state = args.scratch;
  float* dots = args.scratch + 2 * kPartRows * int64_t{args.value_dim};
  Product({x, args.state, args.key_dim, args.value_dim, nullptr, 0, of_state}, rows);
  Product({x, args.keys, args.key_dim, kPartRows, nullptr, 0, dots}, rows);
  for (int32_t i = 0; i < args.rows; ++i) {
    const int32_t at = args.first + i;
    args.decays[at] = (at == 0 ? 0.0f : args.decays[at - 1]) + args.steps[i];
    for (int32_t j = at + 1; j < kPartRows; ++j) args.decays[j] = args.decays[at];
    float since[kPartRows];
    DecaySince(args.decays, args.decays[at], since);
    float whole[kLanes];
    Store(whole, Exp(Set(args.decays[at])));
    RowFactors factors;
    factors.decay = whole[0];
    const float* with_query = dots + int64_t{of_keys + i} * kPartRows;
    const float* with_key = args.delta ? dots + int64_t{i} * kPartRows : with_query;
    for (int32_t j = 0; j < kPartRows; j += kLanes) {
      Store(factors.in_update + j, Load(since + j) * Load(with_key + j));
      Store(factors.in_output + j, Load(since + j) * Load(with_query + j));
    }
    ScanRow(args, i, factors, of_state + i * int64_t{args.value_dim},
            of_state + (of_keys + i) * int64_t{args.value_dim});
  }
}

inline void Fold(const FoldArgs& args) {
  const float last = args.decays[kPartRows - 1];
  float since[kPartRows];
  DecaySince(args.decays, last, since);
  float whole[kLanes];
  Store(whole, Exp(Set(last)));
  for (int64_t d = 0; d < args.key_dim; ++d) {
    for (int j = 0; j < kPartRows; j += kLanes) {
      const int64_t i = d * kPartRows + j;
      Store(args.scratch + i, Load(args.keys + i) * Load(since + j));
    }
  }
  const float* x[kMaxFloatTile];
  for (int32_t d = 0; d < args.key_dim; d += kMaxFloatTile) {
    const int32_t left = args.key_dim - d;
    const int32_t rows = left < kMaxFloatTile ? left : kMaxFloatTile;
    for (int32_t r = 0; r < rows; ++r) x[r] = args.scratch + (d + r) * kPartRows;
    const int64_t at = int64_t{d} * args.value_dim;
    Product({x, args.updates, kPartRows, args.value_dim, args.state + at, whole[0], args.out + at},
            rows);
  }
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

// log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x|, and log(1 + t) is twice the inverse
// hyperbolic tangent of t / (2 + t), up to a third: the series is cut behind the 15th power, where
// 2e-9 of it are left.
inline Vec Softplus(Vec x) {
  const Vec t = ExpOfNegative(-Abs(x));
  const Vec s = t / (t + Set(2.0f));
  const Vec square = s * s;
  Vec series = Set(1.0f / 15);
  for (int power = 13; power > 0; power -= 2) {
    series = Fma(series, square, Set(1.0f / static_cast<float>(power)));
  }
  return Max(x, Zero()) + Set(2.0f) * s * series;
}

// Vectors of channels whose rows are prepared before the states take them in, and gated behind
// that: rows of one vector, or vectors of one row, so that their long chains of operations run side
// by side.
constexpr int kPreparedVectors = kPartRows;

struct PreparedRows {
  alignas(64) float steps[kPreparedVectors * kLanes];  // dt log2(e)
  alignas(64) float updates[kPreparedVectors * kLanes];
  alignas(64) float sums[kPreparedVectors * kLanes];  // of S q
};

// Row t of lanes [c, c + kLanes), to place i.
inline void PrepareSelected(const SelectRowsArgs& args, int64_t c, int32_t t, int i,
                            PreparedRows* to) {
  const int lanes = LanesAt(c, args.channels);
  const Vec given = LoadUpTo(args.steps + t * args.step_stride + c, lanes);
  const Vec step = args.kept ? given : Softplus(given);
  const Vec value = LoadUpTo(args.values + t * args.value_stride + c, lanes);
  if (args.kept_steps) {
    StoreUpTo(args.kept_steps + t * args.kept_stride + c, step, lanes);
    StoreUpTo(args.kept_values + t * args.kept_stride + c, value, lanes);
  }
  Store(to->steps + i * kLanes, step * Set(kLog2OfE));
  Store(to->updates + i * kLanes, step * value);
  Store(to->sums + i * kLanes, Zero());
}

// Elements [d, d + States) of the states of one vector of channels over all rows, which have the
// places from i on.
template <int States>
inline void AdvanceStates(const SelectRowsArgs& args, int64_t c, int32_t d, int i,
                          PreparedRows* rows) {
  const int64_t at =
      (c / kBlockChannels * args.state_dim + d) * kBlockChannels + c % kBlockChannels;
  const float* decay = args.decay + at;
  float* state = args.state + at;
  Vec held[States];
#pragma GCC unroll 16
  for (int s = 0; s < States; ++s) held[s] = Load(state + s * kBlockChannels);
  const float* key = args.keys + d;
  const float* query = args.kept ? key : args.queries + d;
  for (int32_t t = 0; t < args.rows; ++t, ++i, key += args.key_stride, query += args.key_stride) {
    const Vec step = Load(rows->steps + i * kLanes);
    const Vec update = Load(rows->updates + i * kLanes);
    Vec sum = Load(rows->sums + i * kLanes);
#pragma GCC unroll 16
    for (int s = 0; s < States; ++s) {
      const Vec factor = PowerOfTwo(step * Load(decay + s * kBlockChannels));
      held[s] = Fma(Set(key[s]), update, factor * held[s]);
      sum = Fma(Set(query[s]), held[s], sum);
    }
    Store(rows->sums + i * kLanes, sum);
  }
#pragma GCC unroll 16
  for (int s = 0; s < States; ++s) Store(state + s * kBlockChannels, held[s]);
}

// States that are held in registers over all rows, beside the constants of their powers: those of
// all published models with 32 registers.
constexpr int kHeldStates = kLanes == 16 ? 16 : 4;

inline void AdvanceAll(const SelectRowsArgs& args, int64_t c, int i, PreparedRows* rows) {
  int32_t d = 0;
  for (; d + kHeldStates <= args.state_dim; d += kHeldStates) {
    AdvanceStates<kHeldStates>(args, c, d, i, rows);
  }
  for (; d < args.state_dim; ++d) AdvanceStates<1>(args, c, d, i, rows);
}

inline void FinishSelected(const SelectRowsArgs& args, int64_t c, int32_t t, int i,
                           const PreparedRows& rows) {
  const int lanes = LanesAt(c, args.channels);
  const Vec skip = args.skip ? LoadUpTo(args.skip + c, lanes) : Zero();
  const Vec value = LoadUpTo(args.values + t * args.value_stride + c, lanes);
  Vec out = Fma(skip, value, Load(rows.sums + i * kLanes));
  if (args.gates) out = out * Silu(LoadUpTo(args.gates + t * args.step_stride + c, lanes));
  StoreUpTo(args.out + t * args.value_stride + c, out, lanes);
}

inline void SelectRows(const SelectRowsArgs& args) {
  PreparedRows rows;
  const int64_t vectors_at_once = kPreparedVectors / args.rows;
  for (int64_t first = 0; first < args.channels; first += vectors_at_once * kLanes) {
    const int64_t left = args.channels - first;
    const int64_t most = vectors_at_once * kLanes;
    const int64_t end = first + (left < most ? left : most);
    int i = 0;
    for (int64_t c = first; c < end; c += kLanes) {
      for (int32_t t = 0; t < args.rows; ++t) PrepareSelected(args, c, t, i++, &rows);
    }
    i = 0;
    for (int64_t c = first; c < end; c += kLanes, i += args.rows) AdvanceAll(args, c, i, &rows);
    if (args.kept) continue;
    i = 0;
    for (int64_t c = first; c < end; c += kLanes) {
      for (int32_t t = 0; t < args.rows; ++t) FinishSelected(args, c, t, i++, rows);
    }
  }
}

constexpr RecurrenceKernels kRecurrenceKernels = {MixRow,  Scan,         Fold,
                                                  GateRow, GateElements, SelectRows};

}  // namespace
}  // namespace heddle::kernels::cpu
