// Recurrences over the positions of a sequence, in place of attention: each head has a matrix S,
// its state, which every position decays and adds an outer product to:
//   S_t = exp(g_t) S_{t-1} + k_t u_t^T,   o_t = S_t^T q_t + skip * v_t
// The rules differ in what is added:
//   kGatedDelta  u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t), q_t and k_t of length 1 (q_t then
//                times key_dim^-1/2)
//   kMamba2      u_t = dt_t v_t, g_t = dt_t * decay
// Before that q, k and v pass a causal convolution over positions, each channel alone, and SiLU.
// kSelective has one head, whose values are channels with decays of their own, one for each element
// of k: S_t[d, c] = exp(dt_t[c] decay[d, c]) S_{t-1}[d, c] + k_t[d] dt_t[c] v_t[c]. Only v passes
// the convolution; k, q and what makes dt are products of what it gives. Sources: Yang et al. 2024
// (Gated Delta Networks), Dao & Gu 2024 (Mamba-2; there k is B, q is C), Gu & Dao 2023 (Mamba).
//
// State is in pages of a group of layers of its own (docs/decisions/0087): a page has one snapshot,
// which belongs to the last of its positions. Positions are computed in parts of kScanRows that
// begin at multiples of it in their page. A snapshot has S at the beginning of such a part, and the
// k, u and g of the positions since, from which the next ones follow, and so do up to kScanRows
// positions that a draft's rejection takes back. kSelective computes position by position, whatever
// rows a step has, so that its snapshot has S behind the last row of a step, or, where rows of it
// may be taken back, S before the first of them and v, dt and k of each (docs/decisions/0143).
#pragma once

#include <cstdint>

#include "kernels/kv_cache.h"
#include "kernels/tensor.h"

namespace heddle::kernels {

enum class RecurrenceRule : uint8_t { kGatedDelta, kMamba2, kSelective };

// Positions that are computed together. The rows of a sequence in a step may be rejected
// afterwards, all but the first, if they are not more than this.
inline constexpr int32_t kScanRows = 16;

struct RecurrenceShape {
  RecurrenceRule rule = RecurrenceRule::kGatedDelta;
  int32_t n_heads = 0;      // heads of v, each with its S [key_dim, value_dim]
  int32_t n_key_heads = 0;  // heads of q and k; divides n_heads
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t taps = 0;    // of the convolution, from 1 to kScanRows
  bool tiled = false;  // head h reads q and k of head h % n_key_heads, in place of neighbours
                       // sharing one

  int32_t KeyHead(int32_t head) const {
    return tiled ? head % n_key_heads : head / (n_heads / n_key_heads);
  }
  bool is_selective() const { return rule == RecurrenceRule::kSelective; }
  // Channels of all k that pass the convolution.
  int64_t keys() const { return is_selective() ? 0 : int64_t{n_key_heads} * key_dim; }
  int64_t values() const { return int64_t{n_heads} * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // of the convolution: q, k, v
  // Columns of a row of input: the channels, the gate z [values], then for each head b (of
  // kGatedDelta only: beta = sigmoid(b)) and a (not of kSelective).
  int64_t gate_column() const { return channels(); }
  int64_t beta_column() const { return channels() + values(); }
  int64_t step_column() const {
    return beta_column() + (rule == RecurrenceRule::kGatedDelta ? n_heads : 0);
  }
  int64_t cols() const { return step_column() + (is_selective() ? 0 : n_heads); }
  bool operator==(const RecurrenceShape&) const = default;
};

// Channels of kSelective whose states are neighbours: S and the decays are [blocks, key_dim,
// kChannelBlock], with zeros behind the last channel.
inline constexpr int32_t kChannelBlock = 16;
constexpr int64_t ChannelBlocks(int64_t channels) {
  return (channels + kChannelBlock - 1) / kChannelBlock;
}

// A snapshot: offsets in floats from where the page begins.
struct RecurrenceState {
  explicit RecurrenceState(const RecurrenceShape& shape)
      : state(kHeader),
        updates(state + (shape.is_selective()
                             ? ChannelBlocks(shape.values()) * kChannelBlock * shape.key_dim
                             : int64_t{shape.n_heads} * shape.key_dim * shape.value_dim)),
        decays(updates + (shape.is_selective() ? 1 : 2) * kScanRows * shape.values()),
        keys(decays + (shape.is_selective() ? kScanRows * shape.values()
                                            : 2 * kScanRows * int64_t{shape.n_heads})),
        inputs(keys + (shape.is_selective() ? kScanRows * int64_t{shape.key_dim}
                                            : 2 * kScanRows * shape.keys())),
        input_rows(kScanRows + shape.taps - 1),
        floats(inputs + input_rows * shape.channels()) {}

  static constexpr int64_t kHeader = 16;  // the first of them, an int32: the offset in the page
                                          // of the position that S is before
  int64_t state;                          // S [n_heads, key_dim, value_dim]
  int64_t updates;     // u [n_heads, 2, kScanRows, value_dim], by position modulo 2 kScanRows
  int64_t decays;      // sums of g since the part began [n_heads, 2, kScanRows]
  int64_t keys;        // k [n_key_heads, 2, kScanRows, key_dim] on the CPU; CUDA and the reference
                       // have [key_dim, kScanRows]: pages do not pass between devices of two kinds
                       // kSelective: v, dt and k of positions [kScanRows, values or key_dim], by
                       // position modulo kScanRows
  int64_t inputs;      // of the convolution [input_rows, channels], by position modulo input_rows
  int64_t input_rows;  // as many as the first row may need behind rows that are taken back
  int64_t floats;      // of all
};

// out[t] = finish(o_t), where finish is one of
//   RMS norm of o over each norm_width elements, times `norm`, then times silu(z)
//   the same of o * silu(z), without a gate behind it (gates_first)
//   o * silu(z)                                       (norm == nullptr)
// and g_t = decay * softplus(a_t + step_bias), which for kMamba2 is clamped to [min_step, max_step]
// before the product, and is dt_t.
// Bits of a row depend on its sequence's inputs up to it and on their places in pages alone.
// kSelective takes two calls, between which its rows' products are made. The first has no
// `factors`:
//   out[t] = v_t, of the channels of in
// In the second, `in` has in place of the channels what the steps are made of, and out is read,
// too:
//   dt_t = softplus(in_t),   out[t] = (S_t^T q_t + skip * v_t) * silu(z), or without `gates` the
//   sum
// REQUIRES: pages have a multiple of kScanRows positions; rows of drafts are chains (no tree_mask),
// and not more than kScanRows with the row before them; all spans but the last of a sequence are
// whole pages.
struct RecurrenceArgs {
  RecurrenceShape shape;
  Tensor in;                         // [n, shape.cols()]
  Tensor factors = {};               // [n, 2 * key_dim]: k and q of kSelective
  const float* conv = nullptr;       // [taps, channels], the oldest position first
  const float* conv_bias = nullptr;  // [channels] or nullptr
  const float* decay = nullptr;      // [n_heads], negative; see kChannelBlock
  const float* step_bias = nullptr;  // [n_heads]; not of kSelective
  const float* skip = nullptr;       // [n_heads] or nullptr: none; kSelective: [values]
  const float* norm = nullptr;       // [norm_width], or [values] if norm_per_value
  int64_t norm_width = 0;            // divides values()
  bool norm_per_value = false;
  bool gates_first = false;
  bool gates = true;  // kSelective
  float norm_eps = 1e-6f;
  float min_step = 0.0f;
  float max_step = 3.4e38f;
  KvCacheView cache;  // kF32, page_tokens and n_kv_heads 1, head_dim RecurrenceState::floats
  int32_t page_tokens = 0;
  Tensor out;  // [n, values]; not `in`
};

}  // namespace heddle::kernels
