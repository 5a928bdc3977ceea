// Maps each weight to its tensor in a checkpoint. Plain data; an empty name means that the model
// has no such weight.
//
// Matrices are [output features, input features] as nn.Linear stores them, unless
// `transposed_linears`. The number of layers is the spec's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::engine {

struct LayerSpec;

// Names of the tensors of RWKV-7's time mix (WkvSpec), with the model's width for all vectors.
struct WkvNames {
  std::string shift;    // [6, 1, 1, width]: how inputs are mixed for r, w, k, v, a and g; or each
  std::string shift_r;  // of them
  std::string shift_w;
  std::string shift_k;
  std::string shift_v;
  std::string shift_a;
  std::string shift_g;
  std::string r;  // [width, width], as the next three
  std::string k;
  std::string v;
  std::string o;
  std::string w1;  // [decay_rank, width]
  std::string w2;  // [width, decay_rank]
  std::string w0;
  std::string a1;
  std::string a2;
  std::string a0;
  std::string v1;
  std::string v2;
  std::string v0;
  std::string g1;
  std::string g2;
  std::string key_scale;
  std::string key_mix;
  std::string bonus;
  std::string norm;
  std::string norm_bias;
  std::string mlp_shift;  // MlpSpec::token_shift

  template <typename Visitor>
  void ForEach(Visitor visit) {
    for (std::string* name :
         {&shift, &shift_r,   &shift_w, &shift_k, &shift_v, &shift_a,   &shift_g,
          &r,     &k,         &v,       &o,       &w1,      &w2,        &w0,
          &a1,    &a2,        &a0,      &v1,      &v2,      &v0,        &g1,
          &g2,    &key_scale, &key_mix, &bonus,   &norm,    &norm_bias, &mlp_shift}) {
      visit(name);
    }
  }
};

// Names of one layer's tensors, or a pattern for all layers with "{}" in place of the index.
struct LayerNames {
  std::string attn_norm;  // before attention
  std::string attn_norm_bias;
  std::string attn_post_norm;  // norm of attention's output, or of the stream behind it
  std::string attn_post_norm_bias;
  std::string q;  // either q, k and v, or qkv: the three stacked along output features
  std::string k;
  std::string v;
  std::string qkv;
  std::string q_bias;
  std::string k_bias;
  std::string v_bias;
  std::string qkv_bias;
  std::string q_norm;  // [head_dim], or all heads
  std::string k_norm;
  std::string sinks;      // [n_heads]
  std::string segments;   // [segments, head_dim]
  std::string lambda_q1;  // [head_dim] each, DifferentialSpec
  std::string lambda_k1;
  std::string lambda_q2;
  std::string lambda_k2;
  std::string pair_norm;  // [2 * head_dim]
  std::string q_a;  // latent attention: to the query's latent vector [q_rank, hidden], its norm,
  std::string q_a_norm;  // and from there to the heads [n_heads * (nope + rope), q_rank]
  std::string q_b;       // (once a layer's names are resolved: `q`)
  std::string kv_a;      // [kv_rank + rope, hidden]
  std::string kv_a_norm;
  std::string kv_b;  // either [n_heads * (nope + v), kv_rank], a head's keys and then its values,
  std::string k_b;   // or k_b [n_heads, kv_rank, nope] and v_b [n_heads, v, kv_rank]
  std::string v_b;
  std::string index_q;       // IndexerSpec: [heads * head_dim, q_rank]
  std::string index_k;       // [head_dim, hidden]
  std::string index_k_norm;  // [head_dim]
  std::string index_k_norm_bias;
  std::string index_weights;  // [heads, hidden]
  std::string o;
  std::string o_bias;
  std::string attn_linear;  // [hidden, hidden] in place of attention (once resolved: `o`)
  std::string conv;         // [channels, 1, taps], or without the 1: a convolution in its place,
  std::string conv_bias;    // with a product before it [3 channels, hidden] (once resolved: `qkv`)
  std::string conv_in;      // and one behind it [hidden, channels] (once resolved: `o`)
  std::string conv_in_bias;
  std::string conv_out;
  std::string conv_out_bias;
  // A memory unit has the names of a convolution's two products, and no others.
  // A recurrence has the names of a convolution, whose channels and rows are other ones, and these.
  // Rows of its first product that other tensors have, behind those of conv_in:
  std::string recur_gate;       // z
  std::string recur_beta_step;  // b and a, or
  std::string recur_beta;       // b
  std::string recur_step;       // a
  std::string recur_decay;      // [n_heads]
  std::string recur_step_bias;  // [n_heads]
  std::string recur_skip;       // [n_heads]
  std::string recur_norm;       // [norm_width], or all values
  // A selective scan's products of the convolution's output (RecurrenceSpec::step_rank), where the
  // three above are recur_decay [values, key_dim] and [values]:
  std::string recur_factors;     // [n_factors, values]
  std::string recur_steps;       // [values, step_rank]
  std::string recur_steps_norm;  // [step_rank]
  std::string recur_key_norm;    // [key_dim]
  std::string recur_query_norm;  // [key_dim]
  std::string mlp_norm;          // before the MLP
  std::string mlp_norm_bias;
  std::string mlp_post_norm;  // norm of the MLP's output, or of the stream behind it
  std::string mlp_post_norm_bias;
  std::string gate;  // a gated MLP: either gate and up, or gate_up: gate stacked over up
  std::string up;
  std::string gate_up;
  std::string down;
  std::string gate_bias;
  std::string up_bias;
  std::string down_bias;
  std::string row_gate;        // [1, hidden], MlpSpec::row_gate
  std::string xielu_positive;  // [1] each, XieluSpec
  std::string xielu_negative;
  std::string xielu_beta;
  std::string xielu_eps;

  // A mixture of experts. Names of experts' tensors have "{e}" in place of the expert's index, or
  // name one tensor with all experts as its outermost dimension. In a layer with experts, gate, up
  // and so on are the shared expert's; in a pattern they belong to layers without experts, and
  // shared_* to those with them.
  std::string router;  // [n_experts, hidden]
  std::string router_bias;
  std::string choice_bias;  // [n_experts]
  std::string expert_gate;  // either gate and up, or gate_up
  std::string expert_up;
  std::string expert_gate_up;
  std::string expert_down;
  std::string expert_gate_bias;  // [n_experts, inter] and so on, always stacked
  std::string expert_up_bias;
  std::string expert_gate_up_bias;
  std::string expert_down_bias;
  std::string shared_gate;
  std::string shared_up;
  std::string shared_down;
  // MoeSpec::apart, [hidden] each: of the router's input, beside a factor of 1 / sqrt(hidden); of
  // the experts' input and output; of the MLP's output.
  std::string router_norm;
  std::string expert_norm;
  std::string expert_post_norm;
  std::string mlp_own_norm;
  std::string expert_scale;  // [n_experts]

  std::string stream_scale;     // [1], LayerSpec::scales_stream
  std::string input_gate;       // [layer_input_dim, hidden], ModelSpec::layer_input_dim
  std::string input_out;        // [hidden, layer_input_dim]
  std::string input_post_norm;  // [hidden]

  std::string altup_router_norm;  // [hidden], AltUpSpec; besides it a factor of 1 / hidden
  std::string altup_router;       // [count, hidden]
  std::string altup_predict;      // [count * count, count]
  std::string altup_correct;      // [count, count]
  std::string altup_scale;        // [hidden]
  std::string laurel_in;          // [laurel_rank, hidden], LayerSpec::laurel_rank
  std::string laurel_out;         // [hidden, laurel_rank]
  std::string laurel_norm;        // [hidden]
  WkvNames wkv;

  // Visits the members, for code that treats all alike.
  template <typename Visitor>
  void ForEach(Visitor visit) {
    for (std::string* name : {&attn_norm,
                              &attn_norm_bias,
                              &attn_post_norm,
                              &attn_post_norm_bias,
                              &q,
                              &k,
                              &v,
                              &qkv,
                              &q_bias,
                              &k_bias,
                              &v_bias,
                              &qkv_bias,
                              &q_norm,
                              &k_norm,
                              &sinks,
                              &segments,
                              &q_a,
                              &q_a_norm,
                              &q_b,
                              &kv_a,
                              &kv_a_norm,
                              &kv_b,
                              &k_b,
                              &v_b,
                              &o,
                              &o_bias,
                              &attn_linear,
                              &conv,
                              &conv_bias,
                              &conv_in,
                              &conv_in_bias,
                              &conv_out,
                              &conv_out_bias,
                              &recur_gate,
                              &recur_beta_step,
                              &recur_beta,
                              &recur_step,
                              &recur_decay,
                              &recur_step_bias,
                              &recur_skip,
                              &recur_norm,
                              &mlp_norm,
                              &mlp_norm_bias,
                              &mlp_post_norm,
                              &mlp_post_norm_bias,
                              &gate,
                              &up,
                              &gate_up,
                              &down,
                              &gate_bias,
                              &up_bias,
                              &down_bias,
                              &row_gate,
                              &router,
                              &router_bias,
                              &choice_bias,
                              &expert_gate,
                              &expert_up,
                              &expert_gate_up,
                              &expert_down,
                              &expert_gate_bias,
                              &expert_up_bias,
                              &expert_gate_up_bias,
                              &expert_down_bias,
                              &shared_gate,
                              &shared_up,
                              &shared_down,
                              &router_norm,
                              &expert_norm,
                              &expert_post_norm,
                              &mlp_own_norm,
                              &expert_scale}) {
      visit(name);
    }
    ForEachOfSelection(visit);
    ForEachBesideBlocks(visit);
  }

  // The same for the names that only a selective scan has.
  template <typename Visitor>
  void ForEachOfSelection(Visitor visit) {
    for (std::string* name :
         {&recur_factors, &recur_steps, &recur_steps_norm, &recur_key_norm, &recur_query_norm}) {
      visit(name);
    }
  }

  // The same for the names of what is neither attention nor an MLP, and of some attention.
  template <typename Visitor>
  void ForEachBesideBlocks(Visitor visit) {
    for (std::string* name :
         {&xielu_positive,    &xielu_negative, &xielu_beta,    &xielu_eps,
          &stream_scale,      &input_gate,     &input_out,     &input_post_norm,
          &altup_router_norm, &altup_router,   &altup_predict, &altup_correct,
          &altup_scale,       &laurel_in,      &laurel_out,    &laurel_norm,
          &index_q,           &index_k,        &index_k_norm,  &index_k_norm_bias,
          &index_weights,     &lambda_q1,      &lambda_k1,     &lambda_q2,
          &lambda_k2,         &pair_norm}) {
      visit(name);
    }
    wkv.ForEach(visit);
  }
};

// The layout of the experts' matrices.
enum class ExpertLayout : uint8_t {
  kPlain,       // [outputs, inputs]; gate_up is gate over up
  kTransposed,  // [inputs, outputs]; the columns of gate_up are gate and up in turns (gpt-oss)
  kTransposedHalves,  // [inputs, outputs]; the columns of gate_up are gate's and then up's
                      // (Qwen3-VL)
  kMxfp4  // [outputs, inputs / 32, 16] bytes of 4-bit floats under <name>_blocks and their
          // scales under <name>_scales; the rows of gate_up take turns as above (gpt-oss)
};

struct NameMap {
  std::string embed;        // [vocab, hidden]
  std::string positions;    // [position_offset + max_context, hidden], learned positions
  std::string token_types;  // [types, hidden]
  std::string distances;    // [distance_buckets, n_heads], DistanceRule::kBuckets
  // ModelSpec::layer_input_dim, with all layers side by side:
  std::string layer_inputs;       // [layer_input_vocab, layers * dim]
  std::string layer_inputs_in;    // [layers * dim, hidden]
  std::string layer_inputs_norm;  // [dim]
  // AltUpSpec: for each stream but the first [hidden, hidden], with "{}" in place of its number
  // from 0 on, or one tensor with all of them as its outermost dimension.
  std::string altup_in;
  std::string altup_out;
  std::string embed_norm;
  std::string embed_norm_bias;
  std::string final_norm;
  std::string final_norm_bias;
  std::string lm_head;       // [vocab, hidden]; empty where it is tied to embed
  std::string lm_head_bias;  // [vocab] or empty
  LayerNames layer;          // pattern

  // GPT-2 stores its linear layers as [input features, output features] (transformers' Conv1D).
  // Embeddings and lm_head are never transposed.
  bool transposed_linears = false;

  // The rows of qkv are grouped by KV head: its query heads, its k, its v (GPT-NeoX, Falcon).
  // Otherwise they are all of q, all of k, all of v.
  bool qkv_by_kv_head = false;

  // The rows of gate_up are up's and then gate's (GTE). Otherwise they are gate's and then up's.
  bool up_first = false;

  ExpertLayout expert_layout = ExpertLayout::kPlain;

  // Layers of the spec that are one layer of the checkpoint, with one index (Falcon-H1: 2).
  int32_t layers_of_index = 1;

  // The names of layer `index`.
  LayerNames Layer(int32_t index) const;
  // The same without the names of parts that the layer does not have.
  LayerNames Layer(int32_t index, const LayerSpec& layer) const;
};

// `pattern` with the expert's index in place of "{e}".
std::string ExpertName(const std::string& pattern, int32_t expert);
// The tensors that hold `count` matrices: `pattern` with each of their numbers, or one with all.
std::vector<std::string> NumberedNames(const std::string& pattern, int32_t count);
// The names of the two tensors of a matrix in ExpertLayout::kMxfp4.
std::string Mxfp4Blocks(const std::string& name);
std::string Mxfp4Scales(const std::string& name);
// Whether all experts are stacked in one tensor of that name.
bool IsStacked(const std::string& pattern);

}  // namespace heddle::engine
