#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/model/conv_taps.h"
#include "engine/model/head_projections.h"
#include "engine/model/layer_loader.h"
#include "engine/model/row_order.h"
#include "engine/parallel/cut_sources.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::WeightSource;

// A rank has some of the channels.
absl::Status Convolution(TensorLoader& loader, const LayerNames& names, const ConvSpec& conv,
                         const HeadShare& share, LayerWeights* layer) {
  const Range channels = share.channels;
  HEDDLE_ASSIGN_OR_RETURN(layer->out, loader.Linear({&names.o}, {&names.o_bias},
                                                    CutColumns(channels, share.sum_borders)));
  if (channels.count == 0) return absl::OkStatus();
  std::vector<Range> bcx(3, channels);
  for (size_t i = 1; i < bcx.size(); ++i) bcx[i].first = bcx[i - 1].first + conv.channels;
  HEDDLE_ASSIGN_OR_RETURN(layer->qkv, loader.Linear({&names.qkv}, {&names.qkv_bias}, CutRows(bcx)));
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* taps, loader.FindPlain(names.conv));
  HEDDLE_ASSIGN_OR_RETURN(layer->conv, loader.Upload(TapsOf(*taps, conv.taps, {&channels, 1})));
  HEDDLE_ASSIGN_OR_RETURN(layer->conv_bias, loader.Part(names.conv_bias, CutRows({channels})));
  return absl::OkStatus();
}

// The decays [channels, key_dim] of a selective scan in blocks of channels
// (kernels::kChannelBlock).
std::vector<float> DecaysByBlock(std::span<const float> decay,
                                 const kernels::RecurrenceShape& shape) {
  constexpr int64_t kBlock = kernels::kChannelBlock;
  const int64_t key_dim = shape.key_dim;
  std::vector<float> blocks(
      static_cast<size_t>(kernels::ChannelBlocks(shape.values()) * kBlock * key_dim));
  for (int64_t c = 0; c < shape.values(); ++c) {
    for (int64_t d = 0; d < key_dim; ++d) {
      blocks[static_cast<size_t>((c / kBlock * key_dim + d) * kBlock + c % kBlock)] =
          decay[static_cast<size_t>(c * key_dim + d)];
    }
  }
  return blocks;
}

// The tensors that only selective scans have. One rank has all of them.
absl::Status SelectiveFactors(TensorLoader& loader, const LayerNames& names,
                              const RecurrenceSpec& spec, RecurrenceWeights* weights) {
  HEDDLE_ASSIGN_OR_RETURN(weights->factors, loader.Linear({&names.recur_factors}, {}));
  HEDDLE_ASSIGN_OR_RETURN(weights->steps,
                          loader.Linear({&names.recur_steps}, {&names.recur_step_bias}));
  HEDDLE_ASSIGN_OR_RETURN(weights->step_norm, loader.Vector({&names.recur_steps_norm}));
  HEDDLE_ASSIGN_OR_RETURN(weights->key_norm, loader.Vector({&names.recur_key_norm}));
  HEDDLE_ASSIGN_OR_RETURN(weights->query_norm, loader.Vector({&names.recur_query_norm}));
  HEDDLE_ASSIGN_OR_RETURN(weights->skip, loader.Vector({&names.recur_skip}));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> decay, loader.Values({&names.recur_decay}));
  for (float& d : decay) {
    d = spec.decay_is_log ? -std::exp(d) : d;
    if (d > 0.0f) {
      return absl::InvalidArgumentError(
          base::StrCat("tensor ", base::Quote(names.recur_decay),
                       " has a number above 0, with which the state would grow without end"));
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(weights->decay, loader.Upload(DecaysByBlock(decay, spec.shape)));
  return absl::OkStatus();
}

// A rank has some of the key heads, with their heads.
absl::Status Recurrence(TensorLoader& loader, const LayerNames& names, const RecurrenceSpec& spec,
                        const HeadShare& share, LayerWeights* layer) {
  const Range key_heads = share.channels;
  const Range heads = RecurrenceHeads(spec, key_heads);
  const Range values = Times(heads, spec.shape.value_dim);
  const int64_t width = spec.shape.values() / spec.shape.n_key_heads;  // of a key head
  HEDDLE_ASSIGN_OR_RETURN(
      layer->out,
      loader.Linear({&names.o}, {&names.o_bias}, CutColumns(key_heads, share.sum_borders, width)));
  if (heads.count == 0) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(layer->qkv,
                          loader.Linear({&names.qkv, &names.recur_gate, &names.recur_beta_step,
                                         &names.recur_beta, &names.recur_step},
                                        {&names.qkv_bias}, RecurrenceRowsOf(spec, key_heads)));
  const std::vector<Range> channels = RecurrenceChannels(spec, key_heads);
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* taps, loader.FindPlain(names.conv));
  HEDDLE_ASSIGN_OR_RETURN(layer->conv, loader.Upload(TapsOf(*taps, spec.shape.taps, channels)));
  HEDDLE_ASSIGN_OR_RETURN(layer->conv_bias, loader.Part(names.conv_bias, CutRows(channels)));
  if (spec.shape.is_selective()) return SelectiveFactors(loader, names, spec, &layer->recurrence);
  const Cut own = CutRows({heads});
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> decay, loader.Values({&names.recur_decay}));
  for (float& d : decay) d = spec.decay_is_log ? -std::exp(d) : d;
  HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.decay, loader.Upload(CutValues(decay, own)));
  HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.step_bias, loader.Part(names.recur_step_bias, own));
  HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.skip, loader.Part(names.recur_skip, own));
  HEDDLE_ASSIGN_OR_RETURN(
      layer->recurrence.norm,
      loader.Part(names.recur_norm, spec.norm_per_value ? CutRows({values}) : Cut{}));
  return absl::OkStatus();
}

absl::Status TimeMix(TensorLoader& loader, const LayerNames& layer_names, LayerWeights* layer) {
  const WkvNames& names = layer_names.wkv;
  WkvWeights& wkv = layer->wkv;
  HEDDLE_ASSIGN_OR_RETURN(
      wkv.shift, loader.Vector({&names.shift, &names.shift_r, &names.shift_w, &names.shift_k,
                                &names.shift_v, &names.shift_a, &names.shift_g}));
  const std::pair<LinearWeights*, const std::string*> whole[] = {
      {&wkv.r, &names.r},   {&wkv.k, &names.k},   {&wkv.v, &names.v},  {&wkv.w1, &names.w1},
      {&wkv.a1, &names.a1}, {&wkv.g1, &names.g1}, {&wkv.g2, &names.g2}};
  for (const auto& [linear, name] : whole) {
    if (name->empty()) continue;
    HEDDLE_ASSIGN_OR_RETURN(*linear, loader.Linear({name}, {}));
  }
  HEDDLE_ASSIGN_OR_RETURN(wkv.w2, loader.Linear({&names.w2}, {&names.w0}));
  HEDDLE_ASSIGN_OR_RETURN(wkv.a2, loader.Linear({&names.a2}, {&names.a0}));
  if (!names.v1.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(wkv.v1, loader.Linear({&names.v1}, {}));
    HEDDLE_ASSIGN_OR_RETURN(wkv.v2, loader.Linear({&names.v2}, {&names.v0}));
  }
  const std::pair<DeviceVector*, const std::string*> vectors[] = {
      {&wkv.key_scale, &names.key_scale}, {&wkv.key_mix, &names.key_mix},
      {&wkv.bonus, &names.bonus},         {&wkv.norm, &names.norm},
      {&wkv.norm_bias, &names.norm_bias}, {&wkv.mlp_shift, &names.mlp_shift}};
  for (const auto& [vector, name] : vectors) {
    HEDDLE_ASSIGN_OR_RETURN(*vector, loader.Vector({name}));
  }
  HEDDLE_ASSIGN_OR_RETURN(layer->out, loader.Linear({&layer_names.o}, {}));
  return absl::OkStatus();
}

absl::StatusOr<IndexerWeights> Indexer(TensorLoader& loader, const LayerNames& names,
                                       const IndexerSpec& spec) {
  IndexerWeights indexer;
  if (!spec.is_here()) return indexer;
  HEDDLE_ASSIGN_OR_RETURN(indexer.q, loader.Linear({&names.index_q}, {}));
  HEDDLE_ASSIGN_OR_RETURN(indexer.k, loader.Linear({&names.index_k}, {}));
  HEDDLE_ASSIGN_OR_RETURN(indexer.k_norm, loader.Norm(names.index_k_norm, names.index_k_norm_bias));
  HEDDLE_ASSIGN_OR_RETURN(indexer.weights,
                          loader.Linear({&names.index_weights}, {}, {}, WeightRole::kExact));
  return indexer;
}

absl::StatusOr<MlaWeights> Mla(TensorLoader& loader, const LayerNames& names,
                               const AttentionSpec& attention, Range heads_here) {
  MlaWeights mla;
  if (attention.mla.q_rank > 0) {
    HEDDLE_ASSIGN_OR_RETURN(mla.q_a, loader.Linear({&names.q_a}, {}));
    HEDDLE_ASSIGN_OR_RETURN(mla.q_a_norm, loader.Vector({&names.q_a_norm}));
  }
  const Cut queries = CutRows({Times(heads_here, attention.mla.q_dim())});
  HEDDLE_ASSIGN_OR_RETURN(mla.q, loader.Linear({&names.q}, {}, queries));
  HEDDLE_ASSIGN_OR_RETURN(mla.indexer, Indexer(loader, names, attention.mla.indexer));
  const int64_t kv_rank = attention.mla.kv_rank;
  const Cut rope_then_latent = CutRows({{kv_rank, attention.mla.rope_dim}, {0, kv_rank}});
  HEDDLE_ASSIGN_OR_RETURN(mla.kv_a, loader.Linear({&names.kv_a}, {}, rope_then_latent));
  HEDDLE_ASSIGN_OR_RETURN(mla.kv_a_norm, loader.Vector({&names.kv_a_norm}));
  std::vector<const CheckpointTensor*> tensors;
  for (const std::string* name : {&names.kv_b, &names.k_b, &names.v_b}) {
    if (name->empty()) continue;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, loader.Find(*name));
    tensors.push_back(tensor);
  }
  HEDDLE_RETURN_IF_ERROR(loader.Prepare(tensors));
  HeadProjections heads(loader.checkpoint(), attention);
  HEDDLE_RETURN_IF_ERROR(heads.Read(names));
  const auto first = static_cast<size_t>(heads_here.first);
  const auto count = static_cast<size_t>(heads_here.count);
  const auto own = [&](std::span<const WeightSource> all) {
    return loader.device().PackStack(all.subspan(first, count), static_cast<int32_t>(count));
  };
  HEDDLE_ASSIGN_OR_RETURN(mla.k_up, own(heads.keys()));
  HEDDLE_ASSIGN_OR_RETURN(mla.v_up, own(heads.values()));
  loader.Release(tensors);
  return mla;
}

// Loads rows and biases ordered by KV head, and reorders them for the forward.
absl::StatusOr<LinearWeights> QkvByKvHead(TensorLoader& loader, const LayerNames& names,
                                          const AttentionSpec& attention, const Cut& cut) {
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, loader.Find(names.qkv));
  WeightSource source = SourceOf(*tensor);
  std::vector<uint8_t> buffer;
  const std::span<const uint8_t> stored(kernels::SourceRows(source, 0, source.rows, &buffer),
                                        static_cast<size_t>(tensor->bytes()));
  const std::vector<std::byte> rows =
      AllQThenKThenV(std::as_bytes(stored),
                     kernels::RowBytes(source.dtype, source.cols) * attention.head_dim, attention);
  source.data = rows.data();
  LinearWeights qkv;
  HEDDLE_ASSIGN_OR_RETURN(qkv.matrix, loader.Pack({&source, 1}, {&tensor, 1}, cut));
  if (names.qkv_bias.empty()) return qkv;
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> bias, loader.Values({&names.qkv_bias}));
  const std::vector<std::byte> sorted = AllQThenKThenV(
      std::as_bytes(std::span(bias)), int64_t{sizeof(float)} * attention.head_dim, attention);
  std::memcpy(bias.data(), sorted.data(), sorted.size());
  HEDDLE_ASSIGN_OR_RETURN(qkv.bias, loader.Upload(CutValues(bias, cut)));
  return qkv;
}

absl::StatusOr<LinearWeights> Qkv(TensorLoader& loader, const LayerNames& names,
                                  const AttentionSpec& attention, const HeadShare& share) {
  const Cut cut = QkvRows(attention, share);
  if (loader.names().qkv_by_kv_head) return QkvByKvHead(loader, names, attention, cut);
  return loader.Linear({&names.qkv, &names.q, &names.k, &names.v},
                       {&names.qkv_bias, &names.q_bias, &names.k_bias, &names.v_bias}, cut);
}

// The lambda of a layer, which no row changes, and the norm's weights with their factor.
absl::Status Differences(TensorLoader& loader, const LayerNames& names,
                         const DifferentialSpec& spec, LayerWeights* layer) {
  if (!spec.is_here) return absl::OkStatus();
  const auto dot = [&](const std::string& q, const std::string& k) -> absl::StatusOr<double> {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> a, loader.Values({&q}));
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> b, loader.Values({&k}));
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  HEDDLE_ASSIGN_OR_RETURN(const double added, dot(names.lambda_q1, names.lambda_k1));
  HEDDLE_ASSIGN_OR_RETURN(const double taken, dot(names.lambda_q2, names.lambda_k2));
  layer->lambda = static_cast<float>(std::exp(added) - std::exp(taken) + spec.first);
  if (!std::isfinite(layer->lambda)) {
    return absl::InvalidArgumentError(base::StrCat("tensors ", base::Quote(names.lambda_q1),
                                                   " and beside it: their products ", added,
                                                   " and ", taken, " have no finite exponentials"));
  }
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> norm, loader.Values({&names.pair_norm}));
  for (float& weight : norm) weight *= 1.0f - spec.first;
  HEDDLE_ASSIGN_OR_RETURN(layer->pair_norm, loader.Upload(norm));
  return absl::OkStatus();
}

}  // namespace

// A rank without heads has the bias of the output projection alone.
absl::Status LoadAttention(TensorLoader& loader, const LayerNames& names,
                           const AttentionSpec& attention, const HeadShare& share,
                           LayerWeights* layer) {
  if (attention.linear) {
    HEDDLE_ASSIGN_OR_RETURN(layer->out, loader.Linear({&names.o}, {&names.o_bias}));
    return absl::OkStatus();
  }
  if (attention.conv.taps > 0) return Convolution(loader, names, attention.conv, share, layer);
  if (attention.recurrence.shape.taps > 0) {
    return Recurrence(loader, names, attention.recurrence, share, layer);
  }
  if (attention.wkv.is_here()) return TimeMix(loader, names, layer);
  if (attention.memory.is_here()) {
    HEDDLE_ASSIGN_OR_RETURN(layer->qkv, loader.Linear({&names.qkv}, {&names.qkv_bias}));
    HEDDLE_ASSIGN_OR_RETURN(layer->out, loader.Linear({&names.o}, {&names.o_bias}));
    return absl::OkStatus();
  }
  if (attention.n_heads == 0) return absl::OkStatus();
  const bool is_latent = attention.mla.kv_rank > 0;
  if (is_latent && share.heads.count > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer->mla, Mla(loader, names, attention, share.heads));
  } else if (share.heads.count > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer->qkv, Qkv(loader, names, attention, share));
  }
  const int64_t value_dim = is_latent ? attention.mla.v_dim : attention.head_dim;
  const Cut heads = CutColumns(share.heads, share.sum_borders, value_dim);
  HEDDLE_ASSIGN_OR_RETURN(layer->out, loader.Linear({&names.o}, {&names.o_bias}, heads));
  HEDDLE_ASSIGN_OR_RETURN(layer->sinks, loader.Part(names.sinks, CutRows({share.heads})));
  if (share.heads.count > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer->segments, loader.Vector({&names.segments}));
  }
  return Differences(loader, names, attention.differential, layer);
}

}  // namespace heddle::engine
