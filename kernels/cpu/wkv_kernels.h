// Kernels for RWKV-7's time mix on Vec. Columns of S lie in the lanes, so that sums over its rows
// have one order.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/vec/vec_tail.h"
#include "kernels/cpu/wkv_table.h"

namespace heddle::kernels::cpu {
namespace {

constexpr float kWkvDecay = -0.6065306597126334f;  // -exp(-1/2)
constexpr float kWkvLeastLength = 1e-12f;          // of a key before it has the length 1

void WkvMix(const WkvMixArgs& args) {
  Vec squares = Zero();
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    const Vec k = LoadUpTo(args.k + i, lanes);
    const Vec a = Sigmoid(LoadUpTo(args.a + i, lanes));
    Vec v = LoadUpTo(args.v + i, lanes);
    if (args.m != nullptr) {
      v = Fma(Sigmoid(LoadUpTo(args.m + i, lanes)), LoadUpTo(args.first_value + i, lanes) - v, v);
    }
    const Vec unit = k * LoadUpTo(args.key_scale + i, lanes);
    squares = Fma(unit, unit, squares);
    StoreUpTo(args.decay + i, Exp(Set(kWkvDecay) * Sigmoid(LoadUpTo(args.w + i, lanes))), lanes);
    StoreUpTo(args.key + i, Fma(k * (a - Set(1.0f)), LoadUpTo(args.key_mix + i, lanes), k), lanes);
    StoreUpTo(args.value + i, v, lanes);
    StoreUpTo(args.unit + i, unit, lanes);
    StoreUpTo(args.gain + i, a, lanes);
  }
  const float length = __builtin_sqrtf(ReduceAdd(squares));
  const Vec factor = Set(1.0f / (length > kWkvLeastLength ? length : kWkvLeastLength));
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    const Vec unit = LoadUpTo(args.unit + i, lanes) * factor;
    StoreUpTo(args.unit + i, unit, lanes);
    StoreUpTo(args.gain + i, unit * LoadUpTo(args.gain + i, lanes), lanes);
  }
}

// Vectors of columns that pass together: their sums are as many chains, and with those of the next
// row fit into the registers of the level.
constexpr int kWkvVectors = kLanes == 16 ? 4 : 2;

// Takes a row in, of V vectors of columns from `c` on. seen: the sum of the
// columns by the row's unit; then by `next_unit`, unless that is nullptr. kWhole: the last vector
// has all lanes, otherwise `lanes` of them.
template <int V, bool kWhole>
inline void WkvTakeIn(const WkvRow& row, const float* next_unit, int32_t dim, int32_t c, int lanes,
                      float* columns, Vec (&seen)[V]) {
  const auto load = [&](const float* p, int v) {
    return kWhole || v + 1 < V ? Load(p + v * kLanes) : LoadUpTo(p + v * kLanes, lanes);
  };
  const auto store = [&](float* p, int v, Vec x) {
    if (kWhole || v + 1 < V) {
      Store(p + v * kLanes, x);
    } else {
      StoreUpTo(p + v * kLanes, x, lanes);
    }
  };
  Vec value[V], out[V], after[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    value[v] = load(row.value + c, v);
    out[v] = after[v] = Zero();
  }
  for (int32_t j = 0; j < dim; ++j, columns += dim) {
    const Vec decay = Set(row.decay[j]);
    const Vec gain = Set(-row.gain[j]);
    const Vec key = Set(row.key[j]);
    const Vec r = row.r == nullptr ? Zero() : Set(row.r[j]);
    const Vec unit = next_unit == nullptr ? Zero() : Set(next_unit[j]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Vec next = Fma(key, value[v], Fma(gain, seen[v], decay * load(columns, v)));
      store(columns, v, next);
      out[v] = Fma(r, next, out[v]);
      after[v] = Fma(unit, next, after[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    seen[v] = after[v];
    if (row.r != nullptr) store(row.out + c, v, out[v]);
  }
}

// Vectors of columns whose sums by the first row's unit are made together: so many that they read
// rows of S whole, from memory as it lies there, before fewer vectors of them take rows in.
constexpr int kWkvFirstVectors = 8;

// The sums of V vectors of columns from `c` on by the unit of the first row, to `seen`.
template <int V, bool kWhole>
inline void WkvFirstSums(const WkvStepArgs& args, int32_t c, int lanes, float* seen) {
  Vec sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = Zero();
  for (int32_t j = 0; j < args.dim; ++j) {
    const float* row = args.state + int64_t{j} * args.dim + c;
    const Vec unit = Set(args.rows[0].unit[j]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const float* p = row + v * kLanes;
      sums[v] = Fma(unit, kWhole || v + 1 < V ? Load(p) : LoadUpTo(p, lanes), sums[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) Store(seen + v * kLanes, sums[v]);
}

// All rows, of V vectors of columns from `c` on, with their sums by the first one's unit. A pass
// over S makes the sums of the next row, too: they have the order of a pass of their own.
template <int V, bool kWhole>
inline void WkvColumns(const WkvStepArgs& args, int32_t c, int lanes, const float* first_sums) {
  Vec seen[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) seen[v] = Load(first_sums + v * kLanes);
  for (int32_t t = 0; t < args.n; ++t) {
    const float* next_unit = t + 1 < args.n ? args.rows[t + 1].unit : nullptr;
    WkvTakeIn<V, kWhole>(args.rows[t], next_unit, args.dim, c, lanes, args.state + c, seen);
  }
}

void WkvStep(const WkvStepArgs& args) {
  static_assert(kWkvFirstVectors % kWkvVectors == 0);
  constexpr int32_t kFirst = kWkvFirstVectors * kLanes;
  constexpr int32_t kStep = kWkvVectors * kLanes;
  float seen[kFirst];
  int32_t c = 0;
  for (; c + kFirst <= args.dim; c += kFirst) {
    WkvFirstSums<kWkvFirstVectors, true>(args, c, kLanes, seen);
    for (int32_t i = 0; i < kFirst; i += kStep) {
      WkvColumns<kWkvVectors, true>(args, c + i, kLanes, seen + i);
    }
  }
  for (; c + kStep <= args.dim; c += kStep) {
    WkvFirstSums<kWkvVectors, true>(args, c, kLanes, seen);
    WkvColumns<kWkvVectors, true>(args, c, kLanes, seen);
  }
  for (; c < args.dim; c += kLanes) {
    const int lanes = LanesAt(c, args.dim);
    WkvFirstSums<1, false>(args, c, lanes, seen);
    WkvColumns<1, false>(args, c, lanes, seen);
  }
}

void WkvFinish(const WkvFinishArgs& args) {
  Vec sum = Zero();
  Vec dot = Zero();
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    sum = sum + LoadUpTo(args.row + i, lanes);
    dot = Fma(LoadUpTo(args.r + i, lanes) * LoadUpTo(args.key + i, lanes),
              LoadUpTo(args.bonus + i, lanes), dot);
  }
  const auto n = static_cast<float>(args.dim);
  const Vec mean = args.norm == nullptr ? Zero() : Set(ReduceAdd(sum) / n);
  Vec squares = Zero();
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    Vec x = LoadUpTo(args.row + i, lanes) - mean;
    StoreUpTo(args.row + i, x, lanes);
    x = LoadUpTo(args.row + i, lanes);  // zeros behind the end
    squares = Fma(x, x, squares);
  }
  const Vec factor = Set(1.0f / __builtin_sqrtf(ReduceAdd(squares) / n + args.eps));
  const Vec bonus = Set(ReduceAdd(dot));
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    Vec out = LoadUpTo(args.row + i, lanes);
    if (args.norm != nullptr) {
      out = Fma(out * factor, LoadUpTo(args.norm + i, lanes), LoadUpTo(args.norm_bias + i, lanes));
    }
    out = Fma(bonus, LoadUpTo(args.value + i, lanes), out);
    if (args.gate != nullptr) out = out * LoadUpTo(args.gate + i, lanes);
    StoreUpTo(args.row + i, out, lanes);
  }
}

void WkvShift(const float* x, const float* before, const float* mix, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = LanesAt(i, n);
    const Vec own = LoadUpTo(x + i, lanes);
    const Vec other = before == nullptr ? Zero() : LoadUpTo(before + i, lanes);
    StoreUpTo(out + i, Fma(LoadUpTo(mix + i, lanes), other - own, own), lanes);
  }
}

void WkvTanh(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = LanesAt(i, n);
    StoreUpTo(x + i, Tanh(LoadUpTo(x + i, lanes)), lanes);
  }
}

void WkvSigmoid(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = LanesAt(i, n);
    StoreUpTo(x + i, Sigmoid(LoadUpTo(x + i, lanes)), lanes);
  }
}

constexpr WkvKernels kWkvKernels = {WkvMix, WkvStep, WkvFinish, WkvShift, WkvTanh, WkvSigmoid};

}  // namespace
}  // namespace heddle::kernels::cpu
