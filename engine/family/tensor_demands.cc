#include "engine/family/tensor_demands.h"

#include <utility>

namespace heddle::engine {
namespace {

class Demands {
 public:
  explicit Demands(const ModelDescription& model) : model_(model) {
    const ModelSpec& spec = model.spec;
    const NameMap& names = model.names;
    Add(names.embed, {spec.vocab, spec.hidden}, "vocab, hidden");
    Add(names.positions, {spec.position_offset + spec.max_context, spec.hidden},
        "max_context, hidden");
    Add(names.token_types, {spec.token_types, spec.hidden}, "types, hidden");
    Add(names.distances, {spec.distance_buckets, spec.layers.front().attention.n_heads},
        "buckets, heads");
    Add(names.layer_inputs, {spec.layer_input_vocab, spec.layer_inputs()},
        "vocab, layers * layer inputs");
    Add(names.layer_inputs_in, {spec.layer_inputs(), spec.hidden}, "layers * layer inputs, hidden");
    AddVector(names.layer_inputs_norm, spec.layer_input_dim, "layer inputs");
    AddStreamEnds(names.altup_in);
    AddStreamEnds(names.altup_out);
    AddVector(names.embed_norm, spec.hidden, "hidden");
    AddVector(names.embed_norm_bias, spec.hidden, "hidden");
    for (int32_t i = 0; i < spec.n_layers(); ++i) {
      const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
      const LayerNames layer_names = names.Layer(i, layer);
      AddAttention(layer_names, layer);
      AddMlp(layer_names, layer.mlp);
      if (layer.moe.n_experts > 0) AddExperts(layer_names, layer.moe);
      AddLayerInput(layer_names, spec.layer_input_dim);
      AddStreams(layer_names, layer.laurel_rank);
    }
    AddVector(names.final_norm, spec.hidden, "hidden");
    AddVector(names.final_norm_bias, spec.hidden, "hidden");
    Add(names.lm_head, {spec.vocab, spec.hidden}, "vocab, hidden");
    AddVector(names.lm_head_bias, spec.vocab, "vocab");
    if (model.pooled.has_value()) AddPooled(*model.pooled);
  }

  std::vector<TensorDemand> Take() { return std::move(list_); }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, std::string_view meaning) {
    if (!name.empty()) list_.push_back({name, std::move(shape), meaning});
  }
  void AddVector(const std::string& name, int64_t size, std::string_view meaning) {
    Add(name, {size}, meaning);
  }
  // A linear layer, in the checkpoint's order of dimensions. `meaning` is for [out, in].
  void AddLinear(const std::string& name, int64_t out, int64_t in, std::string_view meaning,
                 std::string_view transposed_meaning) {
    if (model_.names.transposed_linears) {
      Add(name, {in, out}, transposed_meaning);
    } else {
      Add(name, {out, in}, meaning);
    }
  }

  void AddAttention(const LayerNames& names, const LayerSpec& layer) {
    const AttentionSpec& attention = layer.attention;
    int64_t hidden = model_.spec.hidden;
    if (attention.mla.kv_rank > 0) return AddLatentAttention(names, attention);
    int64_t q = int64_t{attention.n_heads} * attention.head_dim;
    int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
    AddVector(names.attn_norm, hidden, "hidden");
    AddVector(names.attn_norm_bias, hidden, "hidden");
    AddVector(names.attn_post_norm, hidden, "hidden");
    AddVector(names.attn_post_norm_bias, hidden, "hidden");
    if (attention.conv.taps > 0) return AddConvolution(names, attention.conv);
    if (attention.recurrence.shape.taps > 0) return AddRecurrence(names, attention.recurrence);
    if (attention.wkv.is_here()) return AddTimeMix(names.wkv, attention.wkv);
    if (attention.memory.is_here()) return AddMemory(names, attention.memory);
    const int64_t queries = attention.gated ? 2 * q : q;
    if (layer.attention_input == AttentionInput::kPair) {
      Add(names.q, {q, 2 * hidden}, "heads * head_dim, 2 hidden");
      Add(names.k, {kv, 2 * hidden}, "kv_heads * head_dim, 2 hidden");
      Add(names.v, {kv, 2 * hidden}, "kv_heads * head_dim, 2 hidden");
    } else {
      AddLinear(names.q, queries, hidden,
                attention.gated ? "2 heads * head_dim, hidden" : "heads * head_dim, hidden",
                "hidden, heads * head_dim");
      AddLinear(names.k, kv, hidden, "kv_heads * head_dim, hidden", "hidden, kv_heads * head_dim");
      AddLinear(names.v, kv, hidden, "kv_heads * head_dim, hidden", "hidden, kv_heads * head_dim");
      AddLinear(names.qkv, q + 2 * kv, hidden, "(heads + 2 kv_heads) * head_dim, hidden",
                "hidden, (heads + 2 kv_heads) * head_dim");
    }
    AddVector(names.q_bias, queries, "heads * head_dim");
    AddVector(names.k_bias, kv, "kv_heads * head_dim");
    AddVector(names.v_bias, kv, "kv_heads * head_dim");
    AddVector(names.qkv_bias, q + 2 * kv, "(heads + 2 kv_heads) * head_dim");
    bool full_width = attention.qk_norm == QkNorm::kFullWidth;
    AddVector(names.q_norm, full_width ? q : attention.head_dim,
              full_width ? "heads * head_dim" : "head_dim");
    AddVector(names.k_norm, full_width ? kv : attention.head_dim,
              full_width ? "kv_heads * head_dim" : "head_dim");
    AddVector(names.sinks, attention.n_heads, "heads");
    Add(names.segments, {attention.segments, attention.head_dim}, "max_segments, head_dim");
    for (const std::string* name :
         {&names.lambda_q1, &names.lambda_k1, &names.lambda_q2, &names.lambda_k2}) {
      AddVector(*name, attention.head_dim, "head_dim");
    }
    AddVector(names.pair_norm, 2 * int64_t{attention.head_dim}, "2 head_dim");
    AddLinear(names.o, hidden, attention.linear ? hidden : q, "hidden, heads * head_dim",
              "heads * head_dim, hidden");
    AddVector(names.o_bias, hidden, "hidden");
  }

  void AddConvolution(const LayerNames& names, const ConvSpec& conv) {
    const int64_t hidden = model_.spec.hidden;
    const int64_t channels = conv.channels;
    Add(names.conv, {channels, 1, conv.taps}, "channels, 1, taps");
    AddVector(names.conv_bias, channels, "channels");
    Add(names.qkv, {3 * channels, hidden}, "3 channels, hidden");
    AddVector(names.qkv_bias, 3 * channels, "3 channels");
    Add(names.o, {hidden, channels}, "hidden, channels");
    AddVector(names.o_bias, hidden, "hidden");
  }

  void AddMemory(const LayerNames& names, const MemorySpec& memory) {
    const int64_t hidden = model_.spec.hidden;
    Add(names.qkv, {memory.channels, hidden}, "channels, hidden");
    AddVector(names.qkv_bias, memory.channels, "channels");
    Add(names.o, {hidden, memory.channels}, "hidden, channels");
    AddVector(names.o_bias, hidden, "hidden");
  }

  void AddRecurrence(const LayerNames& names, const RecurrenceSpec& recurrence) {
    const int64_t hidden = model_.spec.hidden;
    const kernels::RecurrenceShape& shape = recurrence.shape;
    const int64_t heads = shape.n_heads;
    Add(names.conv, {shape.channels(), 1, shape.taps}, "channels, 1, taps");
    AddVector(names.conv_bias, shape.channels(), "channels");
    // The first tensor has the rows that no other one has.
    int64_t rows = shape.cols();
    const auto add_rows = [&](const std::string& name, int64_t count, std::string_view meaning) {
      Add(name, {count, hidden}, meaning);
      if (!name.empty()) rows -= count;
    };
    add_rows(names.recur_gate, shape.values(), "heads * value_dim, hidden");
    add_rows(names.recur_beta_step, 2 * heads, "2 heads, hidden");
    add_rows(names.recur_beta, heads, "heads, hidden");
    add_rows(names.recur_step, heads, "heads, hidden");
    Add(names.qkv, {rows, hidden}, "keys, values and what else is in it, hidden");
    AddVector(names.qkv_bias, rows, "rows of the product");
    if (shape.is_selective()) {
      AddSelection(names, recurrence);
    } else {
      AddVector(names.recur_decay, heads, "heads");
      AddVector(names.recur_step_bias, heads, "heads");
      AddVector(names.recur_skip, heads, "heads");
    }
    AddVector(names.recur_norm, recurrence.norm_per_value ? shape.values() : recurrence.norm_width,
              "values");
    Add(names.o, {hidden, shape.values()}, "hidden, heads * value_dim");
    AddVector(names.o_bias, hidden, "hidden");
  }

  void AddSelection(const LayerNames& names, const RecurrenceSpec& recurrence) {
    const kernels::RecurrenceShape& shape = recurrence.shape;
    Add(names.recur_decay, {shape.values(), shape.key_dim}, "channels, state");
    AddVector(names.recur_step_bias, shape.values(), "channels");
    AddVector(names.recur_skip, shape.values(), "channels");
    Add(names.recur_factors, {recurrence.n_factors(), shape.values()},
        "step_rank + 2 state, channels");
    Add(names.recur_steps, {shape.values(), recurrence.step_rank}, "channels, step_rank");
    AddVector(names.recur_steps_norm, recurrence.step_rank, "step_rank");
    AddVector(names.recur_key_norm, shape.key_dim, "state");
    AddVector(names.recur_query_norm, shape.key_dim, "state");
  }

  void AddTimeMix(const WkvNames& names, const WkvSpec& wkv) {
    const int64_t hidden = model_.spec.hidden;
    const int64_t width = int64_t{wkv.n_heads} * wkv.head_dim;
    Add(names.shift, {wkv.gate_rank > 0 ? 6 : 5, 1, 1, hidden}, "6, 1, 1, hidden");
    for (const std::string* name : {&names.shift_r, &names.shift_w, &names.shift_k, &names.shift_v,
                                    &names.shift_a, &names.shift_g, &names.mlp_shift}) {
      AddVector(*name, hidden, "hidden");
    }
    for (const std::string* name : {&names.r, &names.k, &names.v}) {
      Add(*name, {width, hidden}, "heads * head_dim, hidden");
    }
    Add(names.o, {hidden, width}, "hidden, heads * head_dim");
    const auto narrow = [&](const std::string& first, const std::string& second, int64_t rank) {
      Add(first, {rank, hidden}, "rank, hidden");
      Add(second, {width, rank}, "heads * head_dim, rank");
    };
    narrow(names.w1, names.w2, wkv.decay_rank);
    narrow(names.a1, names.a2, wkv.rate_rank);
    narrow(names.v1, names.v2, wkv.value_rank);
    narrow(names.g1, names.g2, wkv.gate_rank);
    for (const std::string* name : {&names.w0, &names.a0, &names.v0, &names.key_scale,
                                    &names.key_mix, &names.bonus, &names.norm, &names.norm_bias}) {
      AddVector(*name, width, "heads * head_dim");
    }
  }

  void AddLatentAttention(const LayerNames& names, const AttentionSpec& attention) {
    const MlaSpec& mla = attention.mla;
    const int64_t hidden = model_.spec.hidden;
    const int64_t heads = attention.n_heads;
    AddVector(names.attn_norm, hidden, "hidden");
    Add(names.q_a, {mla.q_rank, hidden}, "q_rank, hidden");
    AddVector(names.q_a_norm, mla.q_rank, "q_rank");
    Add(names.q, {heads * mla.q_dim(), mla.q_rank > 0 ? mla.q_rank : hidden},
        "heads * (nope + rope), q_rank or hidden");
    Add(names.kv_a, {mla.kv_rank + mla.rope_dim, hidden}, "kv_rank + rope, hidden");
    AddVector(names.kv_a_norm, mla.kv_rank, "kv_rank");
    Add(names.kv_b, {heads * (mla.nope_dim + mla.v_dim), mla.kv_rank},
        "heads * (nope + v), kv_rank");
    Add(names.k_b, {heads, mla.kv_rank, mla.nope_dim}, "heads, kv_rank, nope");
    Add(names.v_b, {heads, mla.v_dim, mla.kv_rank}, "heads, v, kv_rank");
    Add(names.o, {hidden, heads * mla.v_dim}, "hidden, heads * v");
    const IndexerSpec& indexer = mla.indexer;
    Add(names.index_q, {int64_t{indexer.n_heads} * indexer.head_dim, mla.q_rank},
        "indexer heads * head_dim, q_rank");
    Add(names.index_k, {indexer.head_dim, hidden}, "indexer head_dim, hidden");
    AddVector(names.index_k_norm, indexer.head_dim, "indexer head_dim");
    AddVector(names.index_k_norm_bias, indexer.head_dim, "indexer head_dim");
    Add(names.index_weights, {indexer.n_heads, hidden}, "indexer heads, hidden");
  }

  void AddPooled(const PooledOutput& pooled) {
    for (const HeadLayer& layer : pooled.layers) {
      if (!layer.folder.empty()) continue;
      if (layer.is_norm) {
        AddVector(layer.weight, layer.in, "outputs");
      } else {
        Add(layer.weight, {layer.out, layer.in}, "outputs, inputs");
      }
      AddVector(layer.bias, layer.out, "outputs");
    }
  }

  void AddMlp(const LayerNames& names, const MlpSpec& mlp) {
    int64_t hidden = model_.spec.hidden;
    AddVector(names.mlp_norm, hidden, "hidden");
    AddVector(names.mlp_norm_bias, hidden, "hidden");
    AddVector(names.mlp_post_norm, hidden, "hidden");
    AddVector(names.mlp_post_norm_bias, hidden, "hidden");
    AddLinear(names.gate_up, 2 * int64_t{mlp.inter}, hidden, "2 inter, hidden", "hidden, 2 inter");
    AddLinear(names.gate, mlp.inter, hidden, "inter, hidden", "hidden, inter");
    AddLinear(names.up, mlp.inter, hidden, "inter, hidden", "hidden, inter");
    AddLinear(names.down, hidden, mlp.inter, "hidden, inter", "inter, hidden");
    AddVector(names.gate_bias, mlp.inter, "inter");
    AddVector(names.up_bias, mlp.inter, "inter");
    AddVector(names.down_bias, hidden, "hidden");
    Add(names.row_gate, {1, hidden}, "1, hidden");
  }

  void AddLayerInput(const LayerNames& names, int64_t dim) {
    const int64_t hidden = model_.spec.hidden;
    for (const std::string* name :
         {&names.xielu_positive, &names.xielu_negative, &names.xielu_beta, &names.xielu_eps}) {
      AddVector(*name, 1, "1");
    }
    AddVector(names.stream_scale, 1, "1");
    Add(names.input_gate, {dim, hidden}, "layer inputs, hidden");
    Add(names.input_out, {hidden, dim}, "hidden, layer inputs");
    AddVector(names.input_post_norm, hidden, "hidden");
  }

  void AddStreamEnds(const std::string& pattern) {
    const int64_t hidden = model_.spec.hidden;
    const int32_t count = model_.spec.altup.count - 1;
    const std::vector<std::string> names = NumberedNames(pattern, count);
    for (const std::string& name : names) {
      if (count > 1 && names.front() == pattern) {
        Add(name, {count, hidden, hidden}, "streams - 1, hidden, hidden");
      } else {
        Add(name, {hidden, hidden}, "hidden, hidden");
      }
    }
  }

  void AddStreams(const LayerNames& names, int64_t laurel_rank) {
    const int64_t hidden = model_.spec.hidden;
    const int64_t count = model_.spec.altup.count;
    AddVector(names.altup_router_norm, hidden, "hidden");
    Add(names.altup_router, {count, hidden}, "streams, hidden");
    Add(names.altup_predict, {count * count, count}, "streams * streams, streams");
    Add(names.altup_correct, {count, count}, "streams, streams");
    AddVector(names.altup_scale, hidden, "hidden");
    Add(names.laurel_in, {laurel_rank, hidden}, "laurel rank, hidden");
    Add(names.laurel_out, {hidden, laurel_rank}, "hidden, laurel rank");
    AddVector(names.laurel_norm, hidden, "hidden");
  }

  void AddExperts(const LayerNames& names, const MoeSpec& moe) {
    const int64_t hidden = model_.spec.hidden;
    const int64_t inter = moe.inter;
    AddLinear(names.router, moe.n_experts, hidden, "experts, hidden", "hidden, experts");
    AddVector(names.router_bias, moe.n_experts, "experts");
    AddVector(names.choice_bias, moe.n_experts, "experts");
    AddVector(names.expert_scale, moe.n_experts, "experts");
    AddVector(names.router_norm, hidden, "hidden");
    AddVector(names.expert_norm, hidden, "hidden");
    AddVector(names.expert_post_norm, hidden, "hidden");
    AddVector(names.mlp_own_norm, hidden, "hidden");
    const int32_t n = moe.n_experts;
    AddStack(names.expert_gate, n, inter, hidden, "inter, hidden");
    AddStack(names.expert_up, n, inter, hidden, "inter, hidden");
    AddStack(names.expert_gate_up, n, 2 * inter, hidden, "2 inter, hidden");
    AddStack(names.expert_down, n, hidden, inter, "hidden, inter");
    Add(names.expert_gate_bias, {n, inter}, "experts, inter");
    Add(names.expert_up_bias, {n, inter}, "experts, inter");
    Add(names.expert_gate_up_bias, {n, 2 * inter}, "experts, 2 inter");
    Add(names.expert_down_bias, {n, hidden}, "experts, hidden");
  }

  // One matrix per expert, or one tensor with all of them.
  void AddStack(const std::string& name, int32_t n_experts, int64_t out, int64_t in,
                std::string_view meaning) {
    if (name.empty()) return;
    switch (model_.names.expert_layout) {
      case ExpertLayout::kTransposed:
      case ExpertLayout::kTransposedHalves:
        return Add(name, {n_experts, in, out}, "experts, then of each its input, output");
      case ExpertLayout::kMxfp4:
        AddBytes(Mxfp4Blocks(name), {n_experts, out, in / 32, 16}, "experts, output, blocks, 16");
        return AddBytes(Mxfp4Scales(name), {n_experts, out, in / 32}, "experts, output, blocks");
      case ExpertLayout::kPlain:
        break;
    }
    if (IsStacked(name)) {
      return Add(name, {n_experts, out, in}, "experts, then of each its output, input");
    }
    for (int32_t e = 0; e < n_experts; ++e) Add(ExpertName(name, e), {out, in}, meaning);
  }

  void AddBytes(const std::string& name, std::vector<int64_t> shape, std::string_view meaning) {
    list_.push_back({name, std::move(shape), meaning, /*bytes=*/true});
  }

  const ModelDescription& model_;
  std::vector<TensorDemand> list_;
};

}  // namespace

std::vector<TensorDemand> DemandsOf(const ModelDescription& model) { return Demands(model).Take(); }

}  // namespace heddle::engine
