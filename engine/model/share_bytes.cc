#include "engine/model/share_bytes.h"

#include <initializer_list>
#include <string>
#include <vector>

#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/distance_table.h"
#include "engine/model/load_device.h"
#include "engine/model/row_order.h"

namespace heddle::engine {
namespace {

using kernels::DType;

class ShareCounter {
 public:
  ShareCounter(const Checkpoint& checkpoint, const NameMap& names, const WeightPolicy& policy,
               const kernels::Device* device)
      : checkpoint_(checkpoint),
        experts_are_mxfp4_(names.expert_layout == ExpertLayout::kMxfp4),
        policy_(policy),
        device_(device) {}

  int64_t bytes() const { return bytes_; }

  // How a matrix is kept whose columns are stored in an order of their own.
  enum class Stored : uint8_t { kInOrder, kByFeature, kWithoutOrder };

  void Matrix(const std::string& name, int64_t rows, int64_t cols,
              WeightRole role = WeightRole::kMatrix, Stored kept = Stored::kInOrder) {
    const CheckpointTensor* tensor = Find(name);
    if (tensor == nullptr) return;
    // Input features in an order of their own are decoded where they are cut (CutSources).
    const bool by_feature =
        tensor->quantized != nullptr && !tensor->quantized->column_order.empty();
    const DType stored = by_feature && kept == Stored::kByFeature ? DType::kF16 : *tensor->dtype;
    const DType dtype = KeptAs(policy_, role, stored, cols);
    const bool has_order = by_feature && kept == Stored::kInOrder && dtype == stored;
    Rows(PackedAs(dtype, has_order, device_), rows, cols);
  }

  // A matrix of which `cols` columns of `all` are kept.
  void Columns(const std::string& name, int64_t rows, int64_t cols, int64_t all) {
    Matrix(name, rows, cols, WeightRole::kMatrix,
           cols != all ? Stored::kByFeature : Stored::kInOrder);
  }

  // Vectors are kept in F32.
  void Vectors(std::initializer_list<const std::string*> names) {
    for (const std::string* name : names) {
      if (const CheckpointTensor* tensor = Find(*name))
        Values(tensor->shape.empty() ? 1 : tensor->shape.back());
    }
  }
  void Values(const std::string& name, int64_t count) {
    if (Find(name) != nullptr) Values(count);
  }

  // Embedding and positions, final norm and head.
  void Ends(const NameMap& names, const ModelSpec& spec, int64_t vocab) {
    Matrix(names.embed, vocab, spec.hidden, WeightRole::kTable);
    Matrix(names.lm_head, vocab, spec.hidden, WeightRole::kTable);
    Values(names.lm_head_bias, vocab);
    Matrix(names.positions, spec.position_offset + spec.max_context, spec.hidden,
           WeightRole::kTable);
    Matrix(names.token_types, spec.token_types, spec.hidden, WeightRole::kTable);
    Matrix(names.layer_inputs, spec.layer_input_vocab, spec.layer_inputs(), WeightRole::kTable);
    Matrix(names.layer_inputs_in, spec.layer_inputs(), spec.hidden);
    Vectors({&names.layer_inputs_norm});
    for (const std::string* pattern : {&names.altup_in, &names.altup_out}) {
      const int64_t others = spec.altup.count - 1;
      const std::vector<std::string> parts = NumberedNames(*pattern, static_cast<int32_t>(others));
      for (const std::string& name : parts) {
        Matrix(name, others / static_cast<int64_t>(parts.size()) * spec.hidden, spec.hidden);
      }
    }
    Vectors({&names.embed_norm, &names.embed_norm_bias, &names.final_norm, &names.final_norm_bias});
  }

  void Layer(const LayerNames& names, const LayerSpec& layer, int64_t hidden,
             int64_t layer_input_dim, const LayerShare& share) {
    Vectors({&names.attn_norm, &names.attn_norm_bias, &names.attn_post_norm,
             &names.attn_post_norm_bias, &names.q_norm, &names.k_norm, &names.mlp_norm,
             &names.mlp_norm_bias, &names.mlp_post_norm, &names.mlp_post_norm_bias});
    LayerInput(names, hidden, layer_input_dim);
    Streams(names, layer.laurel_rank, hidden);
    if (layer.attention.qk_norm_plain) Values(2 * int64_t{layer.attention.head_dim});
    Attention(names, layer.attention, hidden, share.attention);
    const int64_t inner = layer.mlp.inter > 0 ? share.inner.count : 0;
    if (layer.mlp.inter > 0) {
      Matrix(names.gate_up, 2 * inner, hidden);
      Matrix(names.gate, inner, hidden);
      Matrix(names.up, inner, hidden);
      Values(names.gate_bias, inner);
      Values(names.up_bias, inner);
      if (share.inner_order == nullptr) {
        Columns(names.down, hidden, inner, layer.mlp.inter);
      } else {
        Matrix(names.down, hidden, inner, WeightRole::kMatrix, Stored::kWithoutOrder);
      }
      Values(names.down_bias, hidden);
    }
    if (layer.mlp.row_gate && inner > 0) Matrix(names.row_gate, 1, hidden, WeightRole::kExact);
    if (layer.moe.n_experts > 0 && share.expert_inner.count > 0 && share.experts.count > 0) {
      Experts(names, layer.moe, hidden, share);
    }
  }

 private:
  const CheckpointTensor* Find(const std::string& name) const {
    const CheckpointTensor* tensor = name.empty() ? nullptr : checkpoint_.Find(name);
    return tensor != nullptr && tensor->dtype.has_value() ? tensor : nullptr;
  }

  void Rows(DType dtype, int64_t rows, int64_t cols) {
    if (cols == 0) return;
    const int64_t row =
        device_ == nullptr ? kernels::RowBytes(dtype, cols) : device_->PackedRowBytes(dtype, cols);
    bytes_ += rows * row;
  }

  void LayerInput(const LayerNames& names, int64_t hidden, int64_t dim) {
    Matrix(names.input_gate, dim, hidden);
    Matrix(names.input_out, hidden, dim);
    Vectors({&names.input_post_norm});
  }

  void Streams(const LayerNames& names, int64_t laurel_rank, int64_t hidden) {
    for (const std::string* name :
         {&names.altup_router, &names.altup_predict, &names.altup_correct}) {
      if (const CheckpointTensor* tensor = Find(*name)) {
        Matrix(*name, tensor->shape.front(), tensor->shape.back(), WeightRole::kExact);
      }
    }
    Matrix(names.laurel_in, laurel_rank, hidden);
    Matrix(names.laurel_out, hidden, laurel_rank);
    Vectors({&names.altup_router_norm, &names.altup_scale, &names.laurel_norm});
  }

  void Values(int64_t count) { bytes_ += count * int64_t{sizeof(float)}; }

  void Attention(const LayerNames& names, const AttentionSpec& attention, int64_t hidden,
                 const HeadShare& share) {
    const int64_t heads = share.heads.count;
    if (attention.linear) Matrix(names.o, hidden, hidden);
    if (attention.conv.taps > 0) Convolution(names, attention.conv, hidden, share.channels.count);
    if (attention.n_heads > 0) {
      const bool is_latent = attention.mla.kv_rank > 0;
      const int64_t value_dim = is_latent ? attention.mla.v_dim : attention.head_dim;
      Columns(names.o, hidden, heads * value_dim, attention.n_heads * value_dim);
      Values(names.sinks, heads);
      if (heads > 0) Values(names.segments, int64_t{attention.segments} * attention.head_dim);
      if (is_latent && heads > 0) Latent(names, attention.mla, hidden, heads);
      if (!is_latent && heads > 0) Heads(names, attention, hidden, share);
    }
    if (attention.wkv.is_here()) TimeMix(names, attention.wkv, hidden);
    if (attention.memory.is_here()) {
      Matrix(names.qkv, attention.memory.channels, hidden);
      Matrix(names.o, hidden, attention.memory.channels);
      Values(names.qkv_bias, attention.memory.channels);
    }
    if (attention.differential.is_here) Vectors({&names.pair_norm});
    const RecurrenceSpec& recurrence = attention.recurrence;
    if (recurrence.shape.taps > 0) Recurrence(names, recurrence, hidden, share.channels);
    const bool has_out = attention.linear || attention.conv.taps > 0 || recurrence.shape.taps > 0 ||
                         attention.memory.is_here() || attention.n_heads > 0;
    if (has_out) Values(names.o_bias, hidden);
  }

  void Convolution(const LayerNames& names, const ConvSpec& conv, int64_t hidden,
                   int64_t channels) {
    Columns(names.o, hidden, channels, conv.channels);
    if (channels == 0) return;
    Matrix(names.qkv, 3 * channels, hidden);
    Values(names.qkv_bias, 3 * channels);
    Values(names.conv, conv.taps * channels);
    Values(names.conv_bias, channels);
  }

  void Recurrence(const LayerNames& names, const RecurrenceSpec& spec, int64_t hidden,
                  Range key_heads) {
    const int64_t heads = RecurrenceHeads(spec, key_heads).count;
    const int64_t values = heads * spec.shape.value_dim;
    Columns(names.o, hidden, values, spec.shape.values());
    if (heads == 0) return;
    const kernels::RecurrenceShape& shape = spec.shape;
    const int64_t of_heads = (shape.cols() - shape.beta_column()) / shape.n_heads;
    const int64_t keys = shape.keys() / shape.n_key_heads * key_heads.count;
    int64_t rows = 2 * keys + 2 * values + heads * of_heads;
    const auto matrix = [&](const std::string& name, int64_t count) {
      Matrix(name, count, hidden);
      if (!name.empty()) rows -= count;
    };
    matrix(names.recur_gate, values);
    matrix(names.recur_beta_step, 2 * heads);
    matrix(names.recur_beta, heads);
    matrix(names.recur_step, heads);
    Values(names.qkv_bias, rows);
    Matrix(names.qkv, rows, hidden);
    const int64_t channels = 2 * keys + values;
    Values(names.conv, spec.shape.taps * channels);
    Values(names.conv_bias, channels);
    if (shape.is_selective()) return Selection(names, spec);
    Values(names.recur_decay, heads);
    Values(names.recur_step_bias, heads);
    Values(names.recur_skip, heads);
    Values(names.recur_norm, spec.norm_per_value ? values : spec.norm_width);
  }

  void Selection(const LayerNames& names, const RecurrenceSpec& spec) {
    const kernels::RecurrenceShape& shape = spec.shape;
    Matrix(names.recur_factors, spec.n_factors(), shape.values());
    Matrix(names.recur_steps, shape.values(), spec.step_rank);
    Values(names.recur_decay,
           kernels::ChannelBlocks(shape.values()) * kernels::kChannelBlock * shape.key_dim);
    Values(names.recur_step_bias, shape.values());
    Values(names.recur_skip, shape.values());
    Values(names.recur_steps_norm, spec.step_rank);
    Values(names.recur_key_norm, shape.key_dim);
    Values(names.recur_query_norm, shape.key_dim);
  }

  void TimeMix(const LayerNames& layer, const WkvSpec& wkv, int64_t hidden) {
    const WkvNames& names = layer.wkv;
    const int64_t width = int64_t{wkv.n_heads} * wkv.head_dim;
    for (const std::string* name : {&names.r, &names.k, &names.v}) Matrix(*name, width, hidden);
    Matrix(layer.o, hidden, width);
    const auto narrow = [&](const std::string& first, const std::string& second, int64_t rank) {
      Matrix(first, rank, hidden);
      Matrix(second, width, rank);
    };
    narrow(names.w1, names.w2, wkv.decay_rank);
    narrow(names.a1, names.a2, wkv.rate_rank);
    narrow(names.v1, names.v2, wkv.value_rank);
    narrow(names.g1, names.g2, wkv.gate_rank);
    for (const std::string* name : {&names.w0, &names.a0, &names.v0, &names.key_scale,
                                    &names.key_mix, &names.bonus, &names.norm, &names.norm_bias}) {
      Values(*name, width);
    }
    Values(names.shift, (wkv.gate_rank > 0 ? 6 : 5) * hidden);
    for (const std::string* name : {&names.shift_r, &names.shift_w, &names.shift_k, &names.shift_v,
                                    &names.shift_a, &names.shift_g, &names.mlp_shift}) {
      Values(*name, hidden);
    }
  }

  void Heads(const LayerNames& names, const AttentionSpec& attention, int64_t hidden,
             const HeadShare& share) {
    const int64_t q = share.heads.count * attention.head_dim * (attention.gated ? 2 : 1);
    const int64_t kv = static_cast<int64_t>(share.kv_heads.size()) * attention.head_dim;
    Matrix(names.q, q, hidden);
    Matrix(names.k, kv, hidden);
    Matrix(names.v, kv, hidden);
    Matrix(names.qkv, q + 2 * kv, hidden);
    Values(names.q_bias, q);
    Values(names.k_bias, kv);
    Values(names.v_bias, kv);
    Values(names.qkv_bias, q + 2 * kv);
  }

  void Latent(const LayerNames& names, const MlaSpec& mla, int64_t hidden, int64_t heads) {
    Matrix(names.q_a, mla.q_rank, hidden);
    Vectors({&names.q_a_norm, &names.kv_a_norm});
    Matrix(names.q, heads * mla.q_dim(), mla.q_rank > 0 ? mla.q_rank : hidden);
    Matrix(names.kv_a, mla.rope_dim + mla.kv_rank, hidden);
    const IndexerSpec& indexer = mla.indexer;
    Matrix(names.index_q, int64_t{indexer.n_heads} * indexer.head_dim, mla.q_rank);
    Matrix(names.index_k, indexer.head_dim, hidden);
    Vectors({&names.index_k_norm, &names.index_k_norm_bias});
    Matrix(names.index_weights, indexer.n_heads, hidden, WeightRole::kExact);
    // HeadProjections transposes the keys' half of kv_b; stacks are kept as they are.
    if (const CheckpointTensor* both = Find(names.kv_b)) {
      const bool is_wide = *both->dtype == DType::kF32 || *both->dtype == DType::kBF16;
      Rows(is_wide ? *both->dtype : DType::kF16, heads * mla.kv_rank, mla.nope_dim);
      Rows(*both->dtype, heads * mla.v_dim, mla.kv_rank);
    }
    if (const CheckpointTensor* keys = Find(names.k_b)) {
      Rows(*keys->dtype, heads * mla.kv_rank, mla.nope_dim);
    }
    if (const CheckpointTensor* values = Find(names.v_b)) {
      Rows(*values->dtype, heads * mla.v_dim, mla.kv_rank);
    }
  }

  void Experts(const LayerNames& names, const MoeSpec& moe, int64_t hidden,
               const LayerShare& share) {
    const Range inner = share.expert_inner;
    const Range own = share.experts;
    Matrix(names.router, moe.n_experts, hidden, WeightRole::kExact);
    Vectors({&names.router_bias, &names.choice_bias, &names.expert_scale, &names.router_norm,
             &names.expert_norm, &names.expert_post_norm, &names.mlp_own_norm});
    const int64_t n = inner.count;
    ExpertMatrices(names.expert_gate_up, own, 2 * n, hidden, /*is_cut=*/false);
    if (names.expert_gate_up.empty()) {
      ExpertMatrices(names.expert_gate, own, n, hidden, /*is_cut=*/false);
      ExpertMatrices(names.expert_up, own, n, hidden, /*is_cut=*/false);
    }
    ExpertMatrices(names.expert_down, own, hidden, n, n != moe.inter);
    Values(names.expert_gate_up_bias, own.count * 2 * n);
    Values(names.expert_gate_bias, own.count * n);
    Values(names.expert_up_bias, own.count * n);
    if (inner.first == 0) Values(names.expert_down_bias, own.count * hidden);
  }

  // Matrices [rows, cols] of these experts, whichever tensors they lie in.
  void ExpertMatrices(const std::string& name, Range experts, int64_t rows, int64_t cols,
                      bool is_cut) {
    if (name.empty()) return;
    if (experts_are_mxfp4_) return Rows(DType::kMXFP4, experts.count * rows, cols);
    for (int64_t e = experts.first; e < experts.end(); ++e) {
      Matrix(ExpertName(name, static_cast<int32_t>(e)), rows, cols, WeightRole::kMatrix,
             is_cut ? Stored::kByFeature : Stored::kInOrder);
    }
  }

  const Checkpoint& checkpoint_;
  const bool experts_are_mxfp4_;
  const WeightPolicy& policy_;
  const kernels::Device* device_;
  int64_t bytes_ = 0;
};

}  // namespace

int64_t ShareBytes(const Checkpoint& checkpoint, const ModelDescription& model,
                   const WeightPolicy& policy, const Share& share, const kernels::Device* device) {
  const NameMap& names = model.names;
  const ModelSpec& spec = model.spec;
  ShareCounter counter(checkpoint, names, policy, device);
  if (share.stage == 0) counter.Ends(names, spec, share.vocab.count);
  for (int32_t i = 0; i < spec.n_layers(); ++i) {
    if (!share.has_layer(i)) continue;
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    counter.Layer(names.Layer(i, layer), layer, spec.hidden, spec.layer_input_dim,
                  share.layers[static_cast<size_t>(i)]);
  }
  const int64_t n_heads = HeadsWithDistances(spec, share).count;
  return counter.bytes() + DistanceTableSize(spec, n_heads) * int64_t{sizeof(float)};
}

}  // namespace heddle::engine
