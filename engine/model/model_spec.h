// A decoder's architecture as data: the forward (decoder.h) reads it, and a family table
// (engine/family/) makes it of a config.json or of GGUF metadata. Layers may differ from each
// other.
//
// Plain values, no tensors. Dimensions use the glossary in CONTRIBUTING.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace heddle::engine {

using kernels::Activation;
using kernels::NormKind;
using kernels::RopeLayout;
using kernels::RouteRule;
using kernels::RouteScore;

// How inverse frequencies are derived from theta. Sources: Meta's Llama 3.1 release (kLlama3),
// Peng et al. 2023 (kYarn), Ding et al. 2024 (kLongRope), Chen et al. 2023 (kLinear).
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };

struct RopeSpec {
  float theta = 10000.0f;
  int32_t rotary_dim = 0;  // even, <= head_dim; 0: no rotation
  RopeLayout layout = RopeLayout::kHalf;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;   // kLlama3
  float high_freq_factor = 4.0f;  // kLlama3
  float beta_fast = 32.0f;        // kYarn
  float beta_slow = 1.0f;         // kYarn
  bool yarn_truncate = true;      // kYarn: bounds of the ramp are whole dimensions
  float attention_factor = 1.0f;  // multiplies cos and sin
  int32_t original_max_position = 0;
  std::vector<float> divisors;  // [rotary_dim / 2] divisor of each frequency (kLongRope, GGUF's
                                // rope_freqs); empty: none
  std::vector<float> long_divisors;  // kLongRope: those of ModelSpec::long_context

  bool operator==(const RopeSpec&) const = default;
};

// Whether, and over what, q and k are RMS-normed before RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,   // each head alone, one weight per element of a head (Qwen3, Gemma 3)
  kFullWidth  // all heads as one vector (OLMo 2)
};

// An indexer beside latent attention, which chooses the positions that rows read
// (kernels/selection.h). Its queries are projections of the query's latent vector; its keys are one
// vector per position, layer-normed and rotated like the layer's own, which lie behind the layer's
// rows in each page.
struct IndexerSpec {
  int32_t n_heads = 0;  // 0: the layer has no indexer of its own
  int32_t head_dim = 0;
  // Rows that see more positions read so many of them; 0: rows read all. Without an indexer of its
  // own a layer reads those that the last one before it has chosen.
  int32_t top_k = 0;
  RopeLayout layout = RopeLayout::kHalf;

  bool is_here() const { return n_heads > 0; }
};

// Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are projections of
// one latent vector per position. The projections are absorbed into the query and the output, so
// that the cache holds one row of [rope_dim + kv_rank] per position and layer. That row is the key
// and value of every head: n_kv_heads is 1 and head_dim is the length of the row.
struct MlaSpec {
  int32_t kv_rank = 0;   // width of the latent vector; 0: no latent attention
  int32_t q_rank = 0;    // width of the query's; 0: queries are projected directly
  int32_t nope_dim = 0;  // unrotated part of a head's query and key before absorption
  int32_t rope_dim = 0;  // rotated part
  int32_t v_dim = 0;     // width of a head's value
  float norm_eps = 1e-6f;
  IndexerSpec indexer;

  int32_t q_dim() const { return nope_dim + rope_dim; }
};

// A short convolution in place of attention (kernels::ShortConvArgs). One product of the layer's
// input gives its three factors, and another one leads back to the stream.
struct ConvSpec {
  int32_t taps = 0;      // positions that a row sees, itself included; 0: no convolution
  int32_t channels = 0;  // of the model: hidden
  bool bias = false;     // of the products and of the convolution
};

// The order in which a checkpoint has the rows of a recurrence's product, which the decoder has as
// kernels::RecurrenceShape says: q, k, v, z, b, a, each of them head by head.
enum class RecurrenceRows : uint8_t {
  kInOrder,
  kByKeyHead,       // for each key head its q, k, v and z; then for each its b and a
  kStepsByKeyHead,  // q, k, v, z; then for each key head its b and a
  kMamba2           // z, v, k, q, a; and v, k, q are the convolution's channels
};

// Factors of the columns of a recurrence's input, by what they are, and of its output.
struct RecurrenceScales {
  float query = 1.0f;
  float key = 1.0f;
  float value = 1.0f;
  float gate = 1.0f;
  float step = 1.0f;
  float out = 1.0f;
};

// A recurrence in place of attention (kernels::RecurrenceArgs). One product of the layer's input
// gives its rows, and another one leads back to the stream.
struct RecurrenceSpec {
  kernels::RecurrenceShape shape;  // taps 0: no recurrence
  bool conv_bias = false;
  bool bias = false;  // of the products
  bool skip = false;
  int64_t norm_width = 0;  // 0: no norm
  bool norm_per_value = false;
  bool gates_first = false;
  float norm_eps = 1e-6f;
  float min_step = 0.0f;
  float max_step = 3.4e38f;
  RecurrenceRows rows = RecurrenceRows::kInOrder;
  bool decay_is_log = false;  // the checkpoint has the logarithm of minus the decay
  // RecurrenceRule::kSelective: the convolution's output has a product of `step_rank` numbers, k
  // and q; and these numbers one that gives the steps. norms_factors: each of the three is
  // RMS-normed, with weights if the checkpoint has some, by factor_norm_eps.
  int32_t step_rank = 0;
  bool norms_factors = false;
  float factor_norm_eps = 1e-6f;
  // Memory units behind it read what it gives before its gate (MemorySpec); kSelective.
  bool is_memory = false;
  RecurrenceScales scales;

  int64_t n_factors() const { return step_rank + 2 * int64_t{shape.key_dim}; }

  bool is_here() const { return shape.taps > 0 && shape.n_heads > 0; }
};

// RWKV-7's time mix in place of attention (kernels::WkvArgs). Products with narrow waists give the
// decay, the rate at which S is corrected, the share of the first layer's value, and the gate.
struct WkvSpec {
  int32_t n_heads = 0;  // 0: no time mix
  int32_t head_dim = 0;
  int32_t decay_rank = 0;
  int32_t rate_rank = 0;
  int32_t value_rank = 0;  // 0: the first layer, whose value the others have a share of
  int32_t gate_rank = 0;   // 0: no gate
  bool has_norm = true;    // of each head's output
  float norm_eps = 64e-5f;

  bool is_here() const { return n_heads > 0; }
};

// A gated memory unit in place of attention: out(silu(in(x)) * m), where m is what the last
// recurrence before it that is_memory has given for the row. Source: Ren et al. 2025 (SambaY).
struct MemorySpec {
  int32_t channels = 0;  // values of that recurrence; 0: no memory unit
  bool bias = false;     // of the products

  bool is_here() const { return channels > 0; }
};

// Differential attention: heads of queries, keys and values are in pairs. Both queries of a pair
// attend, each with its own key, to the two values side by side; of what the first one gives, what
// the second one gives is taken, times lambda, and the difference is RMS-normed:
//   lambda = exp(<q1, k1>) - exp(<q2, k2>) + first, of four vectors of the checkpoint
// The cache has half as many heads, which are twice as long. Source: Ye et al. 2024.
struct DifferentialSpec {
  bool is_here = false;
  float first = 0.0f;  // 1 - first is a factor of the norm's weights
  float norm_eps = 1e-5f;
};

// kernels::SharpenArgs of a layer's queries; factor 0: none.
struct SharpenSpec {
  float factor = 0.0f;
  int32_t length = 1;
  int32_t offset = 0;
};

// The bias that the distance of two positions adds to their scores, in all layers alike
// (kernels::DistanceBias).
enum class DistanceRule : uint8_t {
  kNone,
  kAlibi,   // it falls by a slope of each head (Press et al. 2022)
  kBuckets  // a table of the checkpoint has a row for near distances, and one for ever wider ranges
};

struct AttentionSpec {
  int32_t n_heads = 0;  // 0: the layer has no attention
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norms_last = false;  // kPerHead: behind the rotation
  bool qk_norm_plain = false;  // kPerHead: without weights
  bool value_norm = false;     // an RMS norm of each head's values, without weights
  // The matrix of the keys is that of the values, too (Gemma 4).
  bool keys_are_values = false;
  // The layer whose keys and values this one reads; -1: it has its own. Then n_kv_heads is 0, and
  // the layer has queries alone (Gemma 3n, Gemma 4).
  int32_t kv_layer = -1;
  int32_t window = 0;      // sliding window in positions; 0: all
  bool in_chunks = false;  // kernels::AttentionArgs::in_chunks; `window` is their size
  SharpenSpec sharpen;
  bool in_order = false;      // kernels::AttentionArgs::in_order
  bool both_ways = false;     // kernels::AttentionArgs::both_ways
  float scale = 0.0f;         // scale of q k^T; usually 1 / sqrt(head_dim)
  bool linear = false;        // one matrix in place of attention; then n_heads is 0
  ConvSpec conv;              // likewise
  RecurrenceSpec recurrence;  // likewise
  WkvSpec wkv;                // likewise
  MemorySpec memory;          // likewise
  DifferentialSpec differential;
  // Heads' outputs are multiplied by the sigmoid of gates, one per element, which the product gives
  // beside the queries: the checkpoint has for each head its query's rows and then its gate's.
  bool gated = false;
  MlaSpec mla;
  float out_scale = 1.0f;  // of what the output projection reads
  float softcap = 0.0f;    // 0: none
  bool sinks = false;      // each head has a logit in the softmax that has no value
  // Rows of a table, one for each segment of a context (SequenceSlice::segment), which are added to
  // each head's key, before the rotation, and to its value; 0: none.
  int32_t segments = 0;
  RopeSpec rope;
  // In a part of a model with QkNorm::kFullWidth: the first head of each rank, and how many heads
  // there are, [world + 1].
  std::vector<int32_t> head_borders;
  std::vector<int32_t> kv_head_borders;

  // Width of queries, keys and values side by side.
  int64_t qkv_dim() const { return int64_t{n_heads + 2 * n_kv_heads} * head_dim; }
  // Heads of keys in the cache, and how long they are.
  int32_t cached_heads() const { return differential.is_here ? n_kv_heads / 2 : n_kv_heads; }
  int32_t cached_dim() const { return differential.is_here ? 2 * head_dim : head_dim; }
  // Width of what its heads give, before differences are taken.
  int64_t attended_dim() const { return int64_t{n_heads} * cached_dim(); }
  // Width of all that their product gives: gates, too, behind the others.
  int64_t product_dim() const { return qkv_dim() + (gated ? int64_t{n_heads} * head_dim : 0); }
};

// kernels::XieluArgs between the products of an ungated MLP. The checkpoint has the alphas before
// their softplus, in tensors, or `positive` and `negative` are they.
struct XieluSpec {
  bool is_here = false;
  float positive = 0.0f;
  float negative = 0.0f;
  float beta = 0.5f;
  float eps = -1e-6f;
};

struct MlpSpec {
  int32_t inter = 0;  // 0: none
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool bias = false;
  bool row_gate = false;   // its output is multiplied by sigmoid(<w, input>)
  float in_scale = 1.0f;   // of its input
  float out_scale = 1.0f;  // of what the second product reads
  // Gates up to so many deviations above their mean are zero (kernels::SparseGateArgs).
  std::optional<float> gate_deviations;
  XieluSpec xielu;           // then the activation is kNone
  bool token_shift = false;  // its input is mixed with that of the position before
};

// A mixture of experts, MLPs of the same shape; a router sends every row to top_k of them.
struct MoeSpec {
  int32_t n_experts = 0;  // 0: none
  // In a part of a model whose ranks have whole experts: how many others have, and this one's
  // first.
  int32_t n_elsewhere = 0;
  int32_t first_here = 0;
  int32_t inter = 0;  // width of one expert
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool bias = false;  // the experts' layers have biases
  bool router_bias = false;
  bool choice_bias = false;    // see kernels::RouteArgs
  bool expert_scale = false;   // likewise
  bool weighs_inputs = false;  // kernels::ExpertMixArgs::weighs_inputs
  // The experts, their router and the MLP beside them have norms of their own, of what enters and
  // leaves them; the layer's MLP norms are the MLP's first and that of the sum (Gemma 4).
  bool apart = false;
  RouteRule rule;

  int32_t n_here() const { return n_experts - n_elsewhere; }
};

// Input of a layer's attention.
enum class AttentionInput : uint8_t {
  kStream,     // the stream, through the layer's norm if it has norms before its blocks
  kRawStream,  // the stream as it is, though there is a norm before the MLP (EAGLE)
  kPair,       // an embedding and a hidden state side by side, which whoever runs the layers has
               // written, normed (EAGLE-3): the layer's attention norm is the embedding's
  kShared,     // what the layer before has read, normed: the two are the attention and the
               // recurrence of one layer of the checkpoint (Falcon-H1); no stage lies between them
};

// The stream that the blocks of a layer read.
enum class Wiring : uint8_t {
  kSequential,  // that to which all blocks before have added
  kParallel,    // both as it was before the layer
  kLadder  // as it was before the last block added to it, so that ranks compute a block while the
           // parts of that one's sum travel; behind layers of other wirings, the whole stream.
           // Source: Zhang et al. 2025 (Ladder-Residual)
};

// A layer adds two blocks to the residual stream x, attention and then the MLP:
//   x += post_norm(block(pre_norm(x))), either norm only where the layer has it; or
//   x = norm(x + block(x)) with stream_norm, whose norms have the places of post_norm's.
// The wiring says which x a block reads. The MLP block is the sum of
// `mlp` and `moe`, which read the same input: beside experts, mlp is the expert that all rows
// share.
struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  MoeSpec moe;
  bool pre_norm = true;
  bool post_norm = false;
  bool stream_norm = false;
  Wiring wiring = Wiring::kSequential;
  AttentionInput attention_input = AttentionInput::kStream;
  bool scales_stream = false;  // the stream is multiplied by a number behind the layer
  // LAuReL (Menghani et al. 2024): what attention reads, and the norm of two products of it, the
  // first of this rank, are added beside attention, and the sum is divided by the root of 2; 0: no.
  int32_t laurel_rank = 0;
  // Whether it keeps something of its rows that later rows of their sequences read.
  bool keeps_rows() const {
    return attention.n_kv_heads > 0 || attention.conv.taps > 0 ||
           attention.recurrence.shape.taps > 0 || attention.wkv.is_here() || mlp.token_shift;
  }
  // In a part of a model (ModelSpec::rank): the block's product that adds to the stream gives this
  // rank's part of a sum over all ranks. The rank may have no share of it: no heads, no features.
  bool attention_is_part = false;
  bool mlp_is_part = false;
};

// Alternating updates (kernels::StreamsArgs): before a layer its streams are predicted, it computes
// the active one, and behind it all are corrected, and what a layer's own input gives is added to
// all but the first. Streams begin as products of the embedding; the first and products of the
// others end as their mean.
struct AltUpSpec {
  int32_t count = 0;  // of streams; 0: no alternating updates
  int32_t active = 0;
  bool scaled = false;  // a layer's own input meets the active stream times a vector
};

struct ModelSpec {
  std::string family;  // row of the family table, e.g. "llama"
  int32_t hidden = 0;
  int32_t vocab = 0;
  int32_t max_context = 0;  // positions the model was made for
  // Positions with the angles for longer texts (kLongRope), which ServeLongTexts gives all texts;
  // 0: there are no others.
  int32_t long_context = 0;
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  float norm_weight_offset = 0.0f;  // added to the weights of all norms (Gemma's 1 + w)
  bool tied_embeddings = false;
  bool learned_positions = false;
  int32_t position_offset = 0;  // rows of the table before that of position 0
  // Width of what each layer has from the tokens besides the stream (per-layer embeddings, Gemma 3n
  // and 4): rows of a table for all layers side by side, and a product of the embedding, normed, in
  // equal parts. Behind its MLP a layer adds norm(out(act(in(x)) * own)) to the stream. 0: none.
  int32_t layer_input_dim = 0;
  int32_t layer_input_vocab = 0;  // rows of that table; tokens behind them have the first
  AltUpSpec altup;
  DistanceRule distances = DistanceRule::kNone;
  int32_t distance_buckets = 0;  // kBuckets: rows of the table, a multiple of 4
  int32_t token_types = 0;       // rows of a table that is added by the tokens' types; 0: none
  bool embedding_norm = false;   // of what the layers read first
  bool final_norm = true;        // of what leaves the last one
  float embedding_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;
  std::vector<LayerSpec> layers;
  // Tensor parallelism: this is the part of rank `rank` of a group (engine/parallel/shard.h), whose
  // ranks have tokens [vocab_borders[r], vocab_borders[r + 1]) of the vocabulary, [world + 1].
  // Empty: this is a whole model.
  int32_t rank = 0;
  std::vector<int32_t> vocab_borders;
  // Pipeline: this is stage `stage` of `n_stages`. Layers of other stages are here without heads,
  // features and experts; embedding, final norm and head are those of stage 0.
  int32_t stage = 0;
  int32_t n_stages = 1;
  // [n_stages + 1]: stage s has layers [stage_borders[s], stage_borders[s + 1]). Empty: this is not
  // a stage.
  std::vector<int32_t> stage_borders;

  // Steps that a pipeline has in flight at most: one more than stages, so that none of them waits
  // while the first one draws and plans.
  int32_t steps_in_flight() const { return n_stages == 1 ? 1 : n_stages + 1; }
  // The stage that has the layer; the last one for those that are no layer's number.
  int32_t StageOf(int32_t layer) const {
    if (layer < 0 || layer >= n_layers()) return n_stages - 1;
    int32_t at = 0;
    while (at + 1 < n_stages && layer >= stage_borders[static_cast<size_t>(at) + 1]) ++at;
    return at;
  }
  int32_t n_layers() const { return static_cast<int32_t>(layers.size()); }
  // The layers that the checkpoint counts (AttentionInput::kShared).
  int32_t n_counted_layers() const {
    int32_t count = 0;
    for (const LayerSpec& layer : layers) {
      count += layer.attention_input == AttentionInput::kShared ? 0 : 1;
    }
    return count;
  }
  // Whether some layer reads the keys and values of another.
  bool shares_kv() const {
    for (const LayerSpec& layer : layers) {
      if (layer.attention.kv_layer >= 0) return true;
    }
    return false;
  }
  // Whether some layers read what a recurrence before them has given.
  bool has_memory() const {
    for (const LayerSpec& layer : layers) {
      if (layer.attention.recurrence.is_memory || layer.attention.memory.is_here()) return true;
    }
    return false;
  }
  // The first layer from which on none keeps anything for later rows: keys, or state. n_layers()
  // if the last one does.
  int32_t first_reader() const {
    int32_t first = n_layers();
    while (first > 0 && !layers[static_cast<size_t>(first) - 1].keeps_rows()) --first;
    return first;
  }
  // Positions from which on indexers choose what rows read; 0: there are none.
  int32_t indexer_top_k() const {
    for (const LayerSpec& layer : layers) {
      if (layer.attention.mla.indexer.top_k > 0) return layer.attention.mla.indexer.top_k;
    }
    return 0;
  }
  // Width of all layers' inputs side by side.
  int64_t layer_inputs() const { return int64_t{layer_input_dim} * n_layers(); }
  bool is_part() const { return !vocab_borders.empty(); }
  // The ranks that share its layers.
  int32_t world() const { return is_part() ? static_cast<int32_t>(vocab_borders.size()) - 1 : 1; }
  // Whether rows see what is behind them: then a text is read whole or not at all.
  bool reads_whole_texts() const { return !layers.empty() && layers.front().attention.both_ways; }
  // The number of segments that contexts may have; 0: layers have no tables of segments.
  int32_t n_segments() const {
    int32_t most = 0;
    for (const LayerSpec& layer : layers) most = std::max(most, layer.attention.segments);
    return most;
  }
  // The place of this part among all ranks of all stages.
  int32_t index() const { return stage * world() + rank; }
  // The rows of embedding and head that are here.
  int32_t own_vocab() const {
    if (stage > 0) return 0;
    return is_part() ? vocab_borders[rank + 1] - vocab_borders[rank] : vocab;
  }
};

// Gives all positions the angles for longer texts if the model has such, and texts of up to
// `max_context` tokens need them; 0: none do. REQUIRES: a whole model's spec.
void ServeLongTexts(int32_t max_context, ModelSpec* spec);

// Takes the indexers out of layers that choose among more positions than texts have, so that rows
// read all of them. Returns how many they would choose; 0: nothing has changed. `max_context`: of
// texts; 0: the model's own. REQUIRES: a whole model's spec.
int32_t ServeShortTexts(int32_t max_context, ModelSpec* spec);

// Inverse frequencies after scaling, [rotary_dim / 2], as transformers computes them.
std::vector<float> InverseFrequencies(const RopeSpec& rope);

}  // namespace heddle::engine
