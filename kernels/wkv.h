// RWKV-7's time mix: a recurrence whose state S [head_dim, head_dim] of each head decays by row and
// is corrected by one product of rank one, before it takes a key and a value in:
//   S_t = diag(w_t) S_{t-1} - (kk_t * a_t) (kk_t^T S_{t-1}) + k_t v_t^T,   o_t = S_t^T r_t
// and what its rows are made of: neighbouring positions, mixed (TokenShift). Source: Peng et al.
// 2025 (RWKV-7 "Goose").
//
// The decay differs by row of S, so that pairs of positions have no factor of their own and parts
// of a text no form as products (kernels/recurrence.h): rows are taken in one by one, which for
// states of 16 KiB costs little beside the products around. State is in pages of a group of layers
// of its own; a page has one snapshot: S before a position that the backend chooses, and what S
// takes in of those since. On the host it goes on with rows that stay (kernels/wkv_pages.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kv_cache.h"
#include "kernels/recurrence.h"
#include "kernels/tensor.h"

namespace heddle::kernels {

// A snapshot: offsets in floats from where the page begins. The first one is an int32, the offset
// in the page of the position that S is before.
struct WkvState {
  WkvState(int64_t heads, int64_t head_dim, int64_t hidden)
      : width(heads * head_dim),
        state(kHeader),
        rows(state + width * head_dim),
        shifts(rows + 2 * kScanRows * kParts * width),
        floats(shifts + 2 * kShiftRows * hidden) {}

  static constexpr int64_t kHeader = 16;
  static constexpr int64_t kParts = 5;  // of a row: w, k, v, kk and kk * a
  // Inputs of a shift that are kept: as many as the first row may need behind rows that are taken
  // back.
  static constexpr int64_t kShiftRows = kScanRows + 1;
  int64_t width;   // of all heads
  int64_t state;   // S [heads, head_dim, head_dim]
  int64_t rows;    // [2 kScanRows, kParts, width], by position modulo 2 kScanRows
  int64_t shifts;  // [2, kShiftRows, hidden], by position modulo kShiftRows: before the time mix,
                   // and before the MLP
  int64_t floats;  // of all
};

// out[t, m] = x[t] + mix[m] * (x[t - 1] - x[t]), where x[-1] of a sequence is zero.
struct TokenShiftArgs {
  Tensor x;                    // [n, hidden]
  const float* mix = nullptr;  // [n_mixes, hidden]
  int32_t n_mixes = 1;
  KvCacheView cache;  // of snapshots
  int32_t page_tokens = 0;
  int64_t place = 0;  // in a snapshot: of this shift's [kShiftRows, hidden]
  Tensor out;         // [n, n_mixes * hidden]; not x
};

// With k, v, r, w, a, m of a row, all [n, n_heads * head_dim]:
//   kk = k * key_scale, each head of length 1;  a = sigmoid(a);  k = k * (1 + (a - 1) * key_mix)
//   v = v + sigmoid(m) * (first_value - v), where m is there; otherwise first_value = v
//   w = exp(-exp(-1/2) * sigmoid(w))
//   out = (LayerNorm(o) of each head * norm + norm_bias + (sum of r * k * bonus) * v) * gate
// with o itself in place of its norm, or without the gate, where the layer has none. Bits of a row
// depend on its sequence's inputs up to it and on their places in pages alone. REQUIRES: as
// RecurrenceArgs.
struct WkvArgs {
  int32_t n_heads = 0;
  int32_t head_dim = 0;
  Tensor r, k, v, w, a;
  Tensor m;                          // data == nullptr: the first layer
  Tensor first_value;                // written in the first layer
  Tensor gate;                       // data == nullptr: none
  const float* key_scale = nullptr;  // [n_heads * head_dim], as all of these
  const float* key_mix = nullptr;
  const float* bonus = nullptr;
  const float* norm = nullptr;  // nullptr: none
  const float* norm_bias = nullptr;
  float norm_eps = 64e-5f;
  KvCacheView cache;  // kF32, page_tokens and n_kv_heads 1, head_dim WkvState::floats
  int32_t page_tokens = 0;
  Tensor out;  // none of the others
};

// Elementwise, in place: tanh(x), or the logistic function of x.
enum class Squash : uint8_t { kTanh, kSigmoid };

}  // namespace heddle::kernels
