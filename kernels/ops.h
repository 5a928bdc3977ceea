// The operations a decoder forward is made of, in reading order. One implementation per backend;
// the forward (engine/model) calls them and knows no device.
//
// An op only enqueues: no blocking, no allocation, no reading back. On the CPU backend "enqueue"
// means that it runs now, on the device's threads. Arguments are views: device memory has to stay
// until the step has ended, host memory that is read until Device::Run or Launch returns. Tensors
// hold Device::activation_dtype() unless said otherwise; norms, softmax and sums are in F32.
// Determinism on the CPU: the order of computation of an output row depends neither on the other
// rows of the batch nor on how a prompt was chunked.
// Aliasing: outputs may alias inputs only where an op says so.
// Thread-safety: none; one forward at a time per device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/adapters.h"
#include "kernels/experts.h"
#include "kernels/kv_cache.h"
#include "kernels/recurrence.h"
#include "kernels/sample.h"
#include "kernels/selection.h"
#include "kernels/tensor.h"
#include "kernels/wkv.h"

namespace heddle::kernels {

// A weight matrix [rows, cols] in the layout of the backend's kernels; made by Device::Pack. It may
// consist of several sources stacked along rows (q, k and v; gate and up).
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  int64_t rows = 0;   // output features
  int64_t cols = 0;   // input features
  int64_t bytes = 0;  // resident, beyond what stays mapped from disk
};

enum class NormKind : uint8_t { kRms, kLayer };
// kRelu2: the square of kRelu (Nemotron). kClampedSwiglu exists only as the gate of a gated
// product, which it replaces whole (gpt-oss): with g = min(gate, 7) and u = up within [-7, 7], g *
// sigmoid(1.702 g) * (u + 1).
enum class Activation : uint8_t { kNone, kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kClampedSwiglu };

// out = norm(x) * weight + bias, row by row. With `residual`: first residual += x (rounded to the
// activation type), then the norm of that sum, so that a block's residual add needs no separate
// pass. out may alias x.
// RMS: x / sqrt(mean(x^2) + eps). Layer: (x - mean) / sqrt(var + eps).
// Sources: Zhang & Sennrich 2019 (RMSNorm); Ba et al. 2016 (LayerNorm).
struct NormArgs {
  NormKind kind = NormKind::kRms;
  Tensor x;                       // [n, dim]
  Tensor residual;                // [n, dim] or data == nullptr
  const float* weight = nullptr;  // [dim] F32; nullptr: ones
  const float* bias = nullptr;    // [dim] F32; nullptr: zeros
  float eps = 1e-5f;
  float weight_offset = 0.0f;  // added to each weight (1 for Gemma's "1 + w")
  Tensor out;                  // [n, dim]
  // Adds gains to the weight and biases to the bias of the rows that have an adapter; nullptr: no
  // row has any.
  const AdapterMatrix* adapters = nullptr;
  AdapterRows adapter_rows = {};
};

// out = epilogue(x * W^T + bias + the rows' adapters).
//   kNone     out [n, W.rows] = act(y)
//   kAdd      out [n, W.rows] += y  (residual)
//   kGated    W stacks gate over up (two sources of equal rows):
//             out [n, W.rows / 2] = act(y_gate) * y_up
enum class Epilogue : uint8_t { kNone, kAdd, kGated };
struct LinearArgs {
  Tensor x;  // [n, W.cols]
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  // [W.rows] F32 or nullptr
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  Tensor out;
  bool out_f32 = false;  // logits: out holds F32 whatever the activation type
  // nullptr: no row has an adapter. Otherwise x's rows are adapter_rows.
  const AdapterMatrix* adapters = nullptr;
  AdapterRows adapter_rows = {};
  // If set, x, which is norm->out, is not computed yet: it is the result of Norm(*norm), and only
  // this product reads it. A backend may fuse both, with less rounding, and not write norm->out.
  // REQUIRES: no residual; norm->out is not norm->x.
  std::optional<NormArgs> norm = std::nullopt;
  // The weight of the only product that reads `out`, all of it, before anything else reads or
  // writes it; nullptr: there may be other readers. A backend may leave data in `out` that only
  // that product understands (decision 0024).
  const PackedWeight* reader = nullptr;
};

// Rotation angles of all rows, once per step and per kind of RoPE: cos_sin[t] holds, for each of
// rotary_dim / 2 frequencies, cos and then sin of position * inv_freq, times `scale`:
// [n, 2, rotary_dim / 2] F32. Angles are computed in F64 so that long positions keep precision.
// Source: Su et al. 2021 (RoFormer).
struct RopeAnglesArgs {
  std::span<const float> inv_freq;  // [rotary_dim / 2]
  float scale = 1.0f;               // attention factor of YaRN and LongRoPE
  float* cos_sin = nullptr;
};

// The pairs that are rotated together: (i, i + rotary_dim/2) as in transformers, or (2i, 2i + 1) as
// in the original paper and GGUF's llama files.
enum class RopeLayout : uint8_t { kHalf, kInterleaved };

// Per row: optional norm of each q and k head (qk-norm), rotation of q in place, rotation of k,
// and k, v written to the cache at the row's kv_slot, in the cache's type. With norms_last the norm
// comes behind the rotation.
struct RopeKvWriteArgs {
  Tensor q;  // [n, n_heads * head_dim], in place
  Tensor k;  // [n, n_kv_heads * head_dim], may be overwritten; data == nullptr: nothing is written,
             // and q alone is rotated
  Tensor v;  // [n, n_kv_heads * head_dim]; data == nullptr: the cache holds keys alone
  int32_t n_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] RMS weights or nullptr
  const float* k_norm = nullptr;
  const AdapterMatrix* q_norm_adapters = nullptr;  // of the batch's rows: gains to these weights
  const AdapterMatrix* k_norm_adapters = nullptr;
  float norm_eps = 1e-6f;
  float norm_weight_offset = 0.0f;
  bool norms_last = false;
  const float* cos_sin = nullptr;  // from RopeAngles; nullptr: no rotation
  int32_t rotary_dim = 0;          // <= head_dim; the rest passes through
  RopeLayout layout = RopeLayout::kHalf;
  KvCacheView cache;
};

// How a layer rotates its queries, for those that are rotated further for a piece of the context:
// the angles grow in proportion to the position.
struct QueryRotation {
  std::span<const float> inv_freq;  // [rotary_dim / 2]
  RopeLayout layout = RopeLayout::kHalf;
};

// The bias that the distance of two positions adds to their score: to that of head h for a query
// and a key at places i and j of a context, table[h * stride() + reach + j - i]. Sources: Press et
// al. 2022 (ALiBi); Raffel et al. 2020 (buckets of distances, T5 and MPNet).
struct DistanceBias {
  // Blocks of keys are read whole, also those that end behind a context.
  static constexpr int32_t kPadding = 32;
  const float* table = nullptr;  // [n_heads, stride()] F32; nullptr: none
  int32_t reach = 0;             // contexts have at most so many positions

  constexpr int64_t stride() const { return 2 * int64_t{reach} + kPadding; }
};

// Softmax(q k^T * scale) v over the spans of each sequence, causal within the step's own rows (see
// batch.h). Query head h reads KV head h / (n_heads / n_kv_heads).
// Sources: Dao et al. 2022 (FlashAttention), Kwon et al. 2023 (paged), Ainslie et al. 2023 (GQA).
struct AttentionArgs {
  Tensor q;  // [n, n_heads * head_dim], or with half_keys [n, n_heads * head_dim / 2]
  int32_t n_heads = 0;
  // A head's query is half as long as a key, and meets the first half of each key in even heads and
  // the second one in odd heads; values are whole. Two keys of one value so are one row of the
  // cache (Ye et al. 2024, Differential Transformer). For batches without pieces that have a turn.
  bool half_keys = false;
  KvCacheView cache;
  float scale = 0.0f;
  int32_t window = 0;  // > 0: a row sees only the last `window` positions, itself included
  // With a window: a row sees the positions from the last multiple of `window` on instead of the
  // last `window` ones.
  bool in_chunks = false;
  bool in_order = false;  // rows see the rows before them, also where the batch has a tree_mask
  // Rows see all positions of their sequence, those behind them too; with a window those less than
  // `window` away on either side. For batches without a tree_mask.
  bool both_ways = false;
  DistanceBias bias = {};        // behind scale and softcap; only with both_ways
  float softcap = 0.0f;          // > 0: scores become softcap * tanh(score / softcap)
  const float* sinks = nullptr;  // [n_heads] an extra logit per head without a value
  Tensor out;                    // [n, n_heads * head_dim]
  float* lse = nullptr;          // [n, n_heads] log-sum-exp of the scores and the sink, or nullptr:
                                 // out * exp(lse) is the sum of exp(score) * v, so that parts of
                                 // a context merge exactly (the sink belongs to one of the parts)
  // For batches with pieces that have a turn; nullptr: the layer rotates nothing.
  const QueryRotation* rotation = nullptr;
  // Rows with a list read its positions in place of all that they see; without window, pieces and
  // both_ways.
  ChosenPlaces chosen = {};
};

// Attention over latents, and the projections around it (DeepSeek-AI 2024): HeadLinear(queries) has
// made attention.q, whose carried columns alone were changed since, by their rotation.
struct LatentAttentionArgs {
  AttentionArgs attention;
  HeadLinearArgs queries;
  HeadLinearArgs values;  // of attention.out; values.out may be where queries.x is
};

// A gated short convolution, over positions and for each channel alone:
//   out[t] = c[t] * (bias + sum over j < taps of weight[j] * y[p - taps + 1 + j]),  y = b * x,
// where p is the row's position in its sequence, and y is zero before the first. The row's y is
// written to the cache at its kv_slot, and the others are read from there: the cache holds them as
// keys of one head, and the window of its group is `taps`. Sums are in F32, the oldest term first.
// REQUIRES: rows of drafts are chains (no tree_mask).
// Source: Poli et al. 2023 (Hyena); Liquid AI 2025 (LFM2).
struct ShortConvArgs {
  Tensor bcx;                     // [n, 3 * channels]: b, c and x of each row
  const float* weight = nullptr;  // [taps, channels] F32, the oldest position first
  const float* bias = nullptr;    // [channels] F32 or nullptr
  int32_t taps = 0;               // >= 1
  KvCacheView cache;              // kF32, n_kv_heads 1, head_dim = channels, keys alone
  Tensor out;                     // [n, channels]; not bcx
};

// A sum over the ranks of a tensor-parallel group, behind a product whose input features are cut
// among them. Every rank gets the same bits: the parts are added in F32 as a binary tree over the
// ranks in their order, the lower half of ranks (a power of two) and the rest first. Ranks without
// a share have their places in it. Parts of sums that WeightSource::sum_borders divides complete
// the tree of those.
//   sum = parts of all ranks + bias;   residual += sum, or out = sum without `residual`
// Then, with `norm`, Norm(*norm) of the result, in one pass.
struct AllReduceArgs {
  // [n, dim], dense. data == nullptr: this rank has no share. The rank must not change it before
  // its next op across ranks has returned.
  Tensor partial;
  const float* bias = nullptr;                  // [dim] F32 or nullptr; the same on all ranks
  Tensor residual;                              // [n, dim] or data == nullptr
  Tensor out;                                   // [n, dim] if there is no residual
  std::optional<NormArgs> norm = std::nullopt;  // its x is the result; no residual
};

// Puts the columns of all ranks side by side: rank r has columns [borders[r], borders[r + 1]) of
// the whole. Buffers are free on return.
struct GatherColumnsArgs {
  Tensor part;                       // [n, own columns] F32, dense; data == nullptr: none
  std::span<const int32_t> borders;  // [world + 1], ascending
  Tensor whole;                      // [n, borders[world]] F32; data == nullptr: not wanted here
  int32_t root = -1;                 // the only rank that wants it, the same on all; -1: any may

  int32_t most_columns() const {
    int32_t most = 0;
    for (size_t r = 1; r < borders.size(); ++r) most = std::max(most, borders[r] - borders[r - 1]);
    return most;
  }
};

// For each row t and each `width` columns of x: x += table[segments[t]], row 0 where the batch has
// no segments. A segment that the table lacks is a bug of whoever made the batch.
// Source: Wen et al., "ParaThinker", 2025 (thought embeddings of keys and values).
struct SegmentArgs {
  const float* table = nullptr;  // [n_segments, width] F32
  int32_t n_segments = 0;
  int32_t width = 0;  // divides x.cols
  Tensor x;           // in place; may be columns of a wider tensor
};

// x[t] *= 1 + factor * log(1 + floor((positions[t] + offset) / length)): queries of long texts,
// whose scores would else become too even. Source: Nakanishi 2025 (Scalable-Softmax), as in Llama 4
// (offset 1) and Ministral 3 (offset 0).
struct SharpenArgs {
  Tensor x;  // [n, any], in place
  float factor = 0.0f;
  int32_t length = 1;
  int32_t offset = 0;
};

// x = x > 0 ? alpha_positive * x^2 + beta * x
//           : alpha_negative * (expm1(min(x, eps)) - x) + beta * x,  element by element.
// Source: Huang & Schlag 2024 (xIELU).
struct XieluArgs {
  Tensor x;  // [n, any], in place
  float alpha_positive = 1.0f;
  float alpha_negative = 1.0f;
  float beta = 0.5f;
  float eps = -1e-6f;
};

// Alternating updates: a row has `count` streams side by side, of which layers compute one, and the
// others follow it by what a router of the row says. Source: Baykal et al. 2023 (AltUp).
struct StreamsArgs {
  Tensor streams;      // [n, count * width], in place
  int32_t count = 1;   // <= kMaxStreams
  Tensor factors;      // F32; PredictStreams: [n, count * count], CorrectStreams: [n, count]
  Tensor computed;     // CorrectStreams: [n, width], what layers made of the active stream
  int32_t active = 0;  // CorrectStreams: that stream
};
inline constexpr int32_t kMaxStreams = 8;

// With the mean m and the deviation s of the gates of a row, all of which it reads, in place:
//   gate = activation(max(0, gate - m - deviations * s)) * up
// Where gates are normally distributed, `deviations` says how many of them stay (Gemma 3n).
struct SparseGateArgs {
  Tensor gate_up;  // [n, 2 * inter]: gates, which become the result, and then ups
  float deviations = 0.0f;
  Activation activation = Activation::kNone;  // one with activation(0) = 0
};

// out[i] = the sum of rows [ranges[i].row, + num_rows) of x, in F32: pooled states are means of
// rows.
struct RowRange {
  int32_t row = 0;
  int32_t num_rows = 0;
};
struct SumRowsArgs {
  Tensor x;  // [n, dim]
  std::span<const RowRange> ranges;
  float* out = nullptr;  // [ranges, dim] on the host, valid when the step has ended
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out[t] = table[token_ids[t]] * scale, for all rows of the batch. Tokens that the table lacks
  // have its first row.
  virtual void Embed(const PackedWeight& table, float scale, Tensor out) = 0;
  // x[t] += vector_scale * gain * x[t] + scale * B A[:, token_ids[t]], for the rows of the batch
  // that have adapters, and whose tokens are those of the columns of A. One part.
  virtual void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) = 0;
  // x[t] += table[positions[t] + offset]: learned positions.
  virtual void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) = 0;
  // x[t] += table[token_types[t]]: 0 where the batch has no types.
  virtual void AddTokenTypes(const PackedWeight& table, Tensor x) = 0;
  virtual void AddSegments(const SegmentArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void RopeAngles(const RopeAnglesArgs& args) = 0;
  virtual void RopeKvWrite(const RopeKvWriteArgs& args) = 0;
  // Linear(product) and then RopeKvWrite(heads), of columns of product.out that nothing else reads
  // or writes in between. A backend may make both at once, with the same values, and then leaves
  // the columns of heads.k and heads.v unwritten. REQUIRES: Epilogue::kNone, no activation.
  virtual void ProjectHeads(const LinearArgs& product, const RopeKvWriteArgs& heads) {
    Linear(product);
    RopeKvWrite(heads);
  }
  virtual void Attention(const AttentionArgs& args) = 0;
  // Attention(args.attention) and then HeadLinear(args.values). A backend may make keys and values
  // of each head of the latents instead, for rows for which that is faster; it rounds in other
  // places then, and leaves anything in attention.out.
  virtual void AttendLatents(const LatentAttentionArgs& args) {
    Attention(args.attention);
    HeadLinear(args.values);
  }
  virtual void SelectPositions(const SelectArgs& args) = 0;
  // Whether a sequence of the batch has more than `positions` in a group's list of spans, so that
  // SelectPositions may choose something; known when the step is planned.
  virtual bool SeesMoreThan(int32_t group, int32_t positions) const = 0;
  virtual void ShortConv(const ShortConvArgs& args) = 0;
  virtual void Recurrence(const RecurrenceArgs& args) = 0;
  // x[t] *= sigmoid(gate[t]), where x may be columns of a wider tensor.
  virtual void GateElements(Tensor gate, Tensor x) = 0;
  virtual void TokenShift(const TokenShiftArgs& args) = 0;
  virtual void TimeMix(const WkvArgs& args) = 0;
  virtual void SquashElements(Squash kind, Tensor x) = 0;
  // x[t] *= factor[t], where either may be columns of a wider tensor, and a factor with a stride of
  // 0 is one F32 row for all.
  virtual void Multiply(Tensor factor, Tensor x) = 0;
  virtual void Sharpen(const SharpenArgs& args) = 0;
  virtual void Xielu(const XieluArgs& args) = 0;
  // x *= factor, where x may be columns of a wider tensor.
  virtual void Scale(Tensor x, float factor) = 0;
  // For each stream p of a row:
  // streams[p] += sum over streams q of factors[p * count + q] * streams[q], of all as they were.
  virtual void PredictStreams(const StreamsArgs& args) = 0;
  // streams[p] += (1 + factors[p]) * (computed - streams[active]), of that one as it was.
  virtual void CorrectStreams(const StreamsArgs& args) = 0;
  // x[t] *= rms(like[t]) / max(rms(x[t]), sqrt(1e-5)), where either may be columns of a wider
  // tensor.
  virtual void MatchMagnitude(Tensor like, Tensor x) = 0;
  virtual void SparseGate(const SparseGateArgs& args) = 0;
  virtual void Route(const RouteArgs& args) = 0;
  virtual void ExpertMix(const ExpertMixArgs& args) = 0;
  virtual void HeadLinear(const HeadLinearArgs& args) = 0;
  // x[t] *= sigmoid(gate[t]); gate [n, 1] F32.
  virtual void GateRows(Tensor gate_f32, Tensor x) = 0;
  // Whether the batch may be narrowed: logit rows are the last ones of their sequences, and there
  // are neither trees nor pieces. Known when the step is planned; false where all rows take all
  // layers: in halves of a step, and in the reference.
  virtual bool EndsWithLogitRows() const { return false; }
  // From here to the end of the step the batch has its logit rows alone, which later ops see as its
  // rows and as its logit rows. They write no keys and no state. REQUIRES: EndsWithLogitRows().
  virtual void NarrowToLogitRows();
  // out[i] = x[logit_rows[i]].
  virtual void GatherLogitRows(Tensor x, Tensor out) = 0;
  // out[t] = x[t] for all rows of x; either may be columns of a wider tensor.
  virtual void CopyRows(Tensor x, Tensor out) = 0;
  // REQUIRES: a step's ops make no more sums of a width than Device::max_row_sums() says.
  virtual void SumRows(const SumRowsArgs& args);
  // x *= scale, then softcap * tanh(x / softcap) if softcap > 0. F32, in place.
  virtual void ScaleLogits(Tensor logits_f32, float scale, float softcap) = 0;
  virtual void Sample(const SampleArgs& args) = 0;

  // Ops across ranks, for devices that have joined a group (Device::JoinGroup); all ranks run them
  // in the same order.
  //
  // Embed for a table that is rows [first_row, first_row + table.rows) of the vocabulary: the rows
  // of other tokens are zero.
  virtual void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out);
  virtual void AllReduce(const AllReduceArgs& args);
  virtual void GatherColumns(const GatherColumnsArgs& args);

  // Between the stages of a pipeline (Device::JoinStages): dense rows of activations go to stage
  // `to`, which receives as many from this one. The rows must stay as they are until it has them,
  // and nobody waits for that here: the caller has as many places in turn as steps are in flight.
  virtual void SendRows(Tensor rows, int32_t to);
  virtual void RecvRows(Tensor rows, int32_t from);
};

}  // namespace heddle::kernels
