#include "engine/family/name_map.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_spec.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kExpert = "{e}";

std::string Replace(const std::string& pattern, std::string_view what, int32_t index) {
  std::string name = pattern;
  if (size_t at = name.find(what); at != std::string::npos) {
    name.replace(at, what.size(), std::to_string(index));
  }
  return name;
}

}  // namespace

std::string ExpertName(const std::string& pattern, int32_t expert) {
  return Replace(pattern, kExpert, expert);
}

std::vector<std::string> NumberedNames(const std::string& pattern, int32_t count) {
  if (pattern.empty() || count == 0) return {};
  if (pattern.find("{}") == std::string::npos) return {pattern};
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) names.push_back(Replace(pattern, "{}", i));
  return names;
}

std::string Mxfp4Blocks(const std::string& name) { return name + "_blocks"; }
std::string Mxfp4Scales(const std::string& name) { return name + "_scales"; }

bool IsStacked(const std::string& pattern) { return pattern.find(kExpert) == std::string::npos; }

namespace {

void Clear(std::initializer_list<std::string*> members) {
  for (std::string* name : members) name->clear();
}

// Keeps the names that a convolution, a recurrence or a memory unit has.
void ClearStateNames(const AttentionSpec& attention, LayerNames* names) {
  const ConvSpec& conv = attention.conv;
  const RecurrenceSpec& recurrence = attention.recurrence;
  if (conv.taps == 0 && recurrence.shape.taps == 0) Clear({&names->conv});
  if (!conv.bias && !recurrence.conv_bias) Clear({&names->conv_bias});
  if ((conv.taps > 0 && !conv.bias) || (recurrence.shape.taps > 0 && !recurrence.bias) ||
      (attention.memory.is_here() && !attention.memory.bias)) {
    Clear({&names->o_bias, &names->qkv_bias});
  }
  if (recurrence.shape.taps == 0) {
    Clear({&names->recur_gate, &names->recur_beta_step, &names->recur_beta, &names->recur_step,
           &names->recur_decay, &names->recur_step_bias});
  }
  if (!recurrence.shape.is_selective()) {
    names->ForEachOfSelection([](std::string* name) { name->clear(); });
  }
  if (!recurrence.norms_factors) {
    Clear({&names->recur_steps_norm, &names->recur_key_norm, &names->recur_query_norm});
  }
  if (!recurrence.skip) Clear({&names->recur_skip});
  if (recurrence.norm_width == 0) Clear({&names->recur_norm});
}

void ClearLatentNames(const MlaSpec& mla, LayerNames* names) {
  if (mla.kv_rank == 0) {
    Clear({&names->q_a, &names->q_a_norm, &names->q_b, &names->kv_a, &names->kv_a_norm,
           &names->kv_b, &names->k_b, &names->v_b});
  } else {
    Clear({&names->k, &names->v, &names->qkv});
    if (mla.q_rank > 0) names->q = names->q_b;
    if (mla.q_rank == 0) Clear({&names->q_a, &names->q_a_norm});
    Clear({&names->q_b});
  }
  if (!mla.indexer.is_here()) {
    Clear({&names->index_q, &names->index_k, &names->index_k_norm, &names->index_k_norm_bias,
           &names->index_weights});
  }
}

// Keeps the names that attention has beside its products, and gives values those of keys.
void ClearBesideHeads(const AttentionSpec& attention, LayerNames* names) {
  if (!attention.sinks) Clear({&names->sinks});
  if (attention.segments == 0) Clear({&names->segments});
  if (attention.keys_are_values) {
    names->v = names->k;
    names->v_bias = names->k_bias;
  }
  if (attention.differential.is_here) return;
  Clear({&names->lambda_q1, &names->lambda_k1, &names->lambda_q2, &names->lambda_k2,
         &names->pair_norm});
}

}  // namespace

LayerNames NameMap::Layer(int32_t index) const {
  LayerNames names = layer;
  index /= layers_of_index;
  names.ForEach([index](std::string* name) { *name = Replace(*name, "{}", index); });
  return names;
}

LayerNames NameMap::Layer(int32_t index, const LayerSpec& spec) const {
  LayerNames names = Layer(index);
  const auto clear = Clear;
  if (spec.moe.n_experts > 0) {
    if (!spec.moe.apart) {
      names.gate = names.shared_gate;
      names.up = names.shared_up;
      names.down = names.shared_down;
    }
  } else {
    clear({&names.router, &names.router_bias, &names.choice_bias, &names.expert_gate,
           &names.expert_up, &names.expert_gate_up, &names.expert_down});
  }
  clear({&names.shared_gate, &names.shared_up, &names.shared_down});
  if (spec.mlp.inter == 0) {
    clear({&names.gate, &names.up, &names.gate_up, &names.down, &names.gate_bias, &names.up_bias,
           &names.down_bias});
  }
  if (spec.attention.n_heads == 0) {
    clear({&names.q, &names.k, &names.v, &names.qkv, &names.q_bias, &names.k_bias, &names.v_bias,
           &names.qkv_bias, &names.q_norm, &names.k_norm});
    const bool convolves = spec.attention.conv.taps > 0 ||
                           spec.attention.recurrence.shape.taps > 0 ||
                           spec.attention.memory.is_here();
    const bool mixes_time = spec.attention.wkv.is_here();
    names.o = convolves ? names.conv_out : names.attn_linear;
    if (convolves) {
      names.o_bias = names.conv_out_bias;
      names.qkv = names.conv_in;
      names.qkv_bias = names.conv_in_bias;
    }
    if (!spec.attention.linear && !convolves && !mixes_time) {
      clear({&names.attn_norm, &names.attn_norm_bias, &names.attn_post_norm,
             &names.attn_post_norm_bias, &names.o, &names.o_bias});
    }
  }
  clear({&names.attn_linear, &names.conv_in, &names.conv_in_bias, &names.conv_out,
         &names.conv_out_bias});
  ClearStateNames(spec.attention, &names);
  if (!spec.attention.wkv.is_here()) {
    names.wkv.ForEach([](std::string* name) { name->clear(); });
  } else {
    names.o = names.wkv.o;
    if (spec.attention.wkv.value_rank == 0) {
      clear({&names.wkv.v0, &names.wkv.v1, &names.wkv.v2});
    }
  }
  if (spec.attention_input == AttentionInput::kRawStream ||
      spec.attention_input == AttentionInput::kShared) {
    clear({&names.attn_norm, &names.attn_norm_bias});
  }
  if (spec.mlp.inter == 0 && spec.moe.n_experts == 0) {
    clear({&names.mlp_norm, &names.mlp_norm_bias, &names.mlp_post_norm, &names.mlp_post_norm_bias});
  }
  ClearLatentNames(spec.attention.mla, &names);
  if (!spec.moe.apart) {
    clear({&names.router_norm, &names.expert_norm, &names.expert_post_norm, &names.mlp_own_norm});
  }
  if (!spec.moe.expert_scale) clear({&names.expert_scale});
  if (!spec.scales_stream) clear({&names.stream_scale});
  if (spec.attention.kv_layer >= 0) {
    clear({&names.k, &names.v, &names.k_bias, &names.v_bias, &names.k_norm});
  }
  if (!spec.moe.gated) clear({&names.expert_gate, &names.expert_gate_up});
  if (!spec.mlp.gated) clear({&names.gate, &names.gate_bias, &names.gate_up});
  if (!spec.moe.bias) {
    clear({&names.expert_gate_bias, &names.expert_up_bias, &names.expert_gate_up_bias,
           &names.expert_down_bias});
  }
  ClearBesideHeads(spec.attention, &names);
  if (!spec.mlp.row_gate) clear({&names.row_gate});
  if (!spec.mlp.xielu.is_here) {
    clear({&names.xielu_positive, &names.xielu_negative, &names.xielu_beta, &names.xielu_eps});
  }
  if (!spec.moe.router_bias) clear({&names.router_bias});
  if (!spec.moe.choice_bias) clear({&names.choice_bias});
  return names;
}

}  // namespace heddle::engine
