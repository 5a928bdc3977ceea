#include "engine/adapter/adapter_sites.h"

#include <algorithm>

namespace heddle::engine {
namespace {

// Rank rows of a part of the head are at most 64 KiB in 16 bits, up to the largest number of parts
// that kernels take.
constexpr int64_t kHeadPartRows = 32768;
constexpr int64_t kMaxHeadParts = 4;
constexpr int64_t kHeadAlignment = 16;

// The parts of the whole vocabulary.
std::vector<int64_t> HeadParts(int64_t vocab) {
  const int64_t count =
      std::clamp<int64_t>((vocab + kHeadPartRows - 1) / kHeadPartRows, 1, kMaxHeadParts);
  const int64_t each =
      ((vocab + count - 1) / count + kHeadAlignment - 1) / kHeadAlignment * kHeadAlignment;
  std::vector<int64_t> parts;
  for (int64_t first = 0; first < vocab; first += each) {
    parts.push_back(std::min(each, vocab - first));
  }
  return parts;
}

SiteShape ShapeInModel(const ModelSpec& spec, AdapterSite site) {
  const int32_t members = spec.own_vocab() > 0 ? 1 : 0;
  switch (site) {
    case AdapterSite::kEmbedding:
      return {members, spec.own_vocab(), {spec.hidden}};
    case AdapterSite::kHead: {
      SiteShape shape{members, spec.hidden, {}};
      for (const HeadPart& part : HeadPartsOf(spec)) shape.parts.push_back(part.count);
      return shape;
    }
    case AdapterSite::kFinalNorm:
      return {spec.stage == 0 ? 1 : 0, 1, {spec.hidden}};
    default:
      return {};
  }
}

// Parts of a product whose rows may be gate and up.
std::vector<int64_t> UpParts(int64_t inter, bool gated) {
  return gated ? std::vector<int64_t>{inter, inter} : std::vector<int64_t>{inter};
}

SiteShape ShapeInMla(const ModelSpec& spec, const AttentionSpec& attention, AdapterSite site) {
  const MlaSpec& mla = attention.mla;
  switch (site) {
    case AdapterSite::kQueryA:
      return {mla.q_rank > 0 ? 1 : 0, spec.hidden, {mla.q_rank}};
    case AdapterSite::kQueryB:
      return {
          1, mla.q_rank > 0 ? mla.q_rank : spec.hidden, {int64_t{attention.n_heads} * mla.q_dim()}};
    case AdapterSite::kKvA:
      return {1, spec.hidden, {mla.rope_dim + mla.kv_rank}};
    case AdapterSite::kKeyHeads:
      return {attention.n_heads, mla.nope_dim, {mla.kv_rank}};
    case AdapterSite::kValueHeads:
      return {attention.n_heads, mla.kv_rank, {mla.v_dim}};
    case AdapterSite::kQueryNorm:
      return {mla.q_rank > 0 ? 1 : 0, 1, {mla.q_rank}};
    case AdapterSite::kKeyNorm:
      return {1, 1, {mla.kv_rank}};
    default:
      return {};
  }
}

// The norm of each head, or the one over the heads of all ranks.
SiteShape ShapeOfHeadsNorm(const AttentionSpec& attention, AdapterSite site) {
  if (attention.n_heads == 0 || attention.qk_norm == QkNorm::kNone) return {};
  if (attention.qk_norm == QkNorm::kPerHead) return {1, 1, {attention.head_dim}};
  const bool is_query = site == AdapterSite::kQueryNorm;
  const std::vector<int32_t>& borders =
      is_query ? attention.head_borders : attention.kv_head_borders;
  const int32_t own = is_query ? attention.n_heads : attention.n_kv_heads;
  return {1, 1, {int64_t{borders.empty() ? own : borders.back()} * attention.head_dim}};
}

// Parts of a recurrence's product: the convolution's channels, gates, and what each head has.
std::vector<int64_t> RecurrenceParts(const kernels::RecurrenceShape& shape) {
  std::vector<int64_t> parts = {shape.channels(), shape.values()};
  for (int64_t at = shape.beta_column(); at < shape.cols(); at += shape.n_heads) {
    parts.push_back(shape.n_heads);
  }
  return parts;
}

SiteShape ShapeInAttention(const ModelSpec& spec, const AttentionSpec& attention,
                           AdapterSite site) {
  const bool latent = attention.mla.kv_rank > 0;
  if (site == AdapterSite::kOut) {
    if (attention.linear) return {1, spec.hidden, {spec.hidden}};
    if (attention.conv.channels > 0) return {1, attention.conv.channels, {spec.hidden}};
    if (attention.memory.is_here()) return {1, attention.memory.channels, {spec.hidden}};
    if (attention.recurrence.is_here()) {
      return {1, attention.recurrence.shape.values(), {spec.hidden}};
    }
    const int64_t head = latent ? attention.mla.v_dim : attention.head_dim;
    return {attention.n_heads > 0 ? 1 : 0, attention.n_heads * head, {spec.hidden}};
  }
  if (latent) return ShapeInMla(spec, attention, site);
  if (site == AdapterSite::kQueryNorm || site == AdapterSite::kKeyNorm) {
    return ShapeOfHeadsNorm(attention, site);
  }
  if (site == AdapterSite::kQkv && attention.conv.channels > 0) {
    const int64_t channels = attention.conv.channels;
    return {1, spec.hidden, {channels, channels, channels}};
  }
  if (site == AdapterSite::kQkv && attention.recurrence.is_here()) {
    return {1, spec.hidden, RecurrenceParts(attention.recurrence.shape)};
  }
  if (site == AdapterSite::kQkv && attention.memory.is_here()) {
    return {1, spec.hidden, {attention.memory.channels}};
  }
  if (site != AdapterSite::kQkv || attention.n_heads == 0) return {};
  const int64_t kv_rows = int64_t{attention.n_kv_heads} * attention.head_dim;
  const int64_t q_rows = int64_t{attention.n_heads} * attention.head_dim;
  if (attention.kv_layer >= 0) return {1, spec.hidden, {q_rows}};
  if (attention.gated) return {1, spec.hidden, {q_rows, kv_rows, kv_rows, q_rows}};
  return {1, spec.hidden, {q_rows, kv_rows, kv_rows}};
}

SiteShape ShapeInLayer(const ModelSpec& spec, const LayerSpec& layer, AdapterSite site) {
  const MlpSpec& mlp = layer.mlp;
  const MoeSpec& moe = layer.moe;
  // A rank without a share norms what the others have added up.
  const bool has_attention = layer.attention.n_heads > 0 || layer.attention.linear ||
                             layer.attention.conv.taps > 0 ||
                             layer.attention.recurrence.shape.taps > 0 ||
                             layer.attention.memory.is_here() || layer.attention_is_part;
  const bool has_mlp = mlp.inter > 0 || moe.n_experts > 0 || layer.mlp_is_part;
  switch (site) {
    case AdapterSite::kUp:
      return {mlp.inter > 0 ? 1 : 0, spec.hidden, UpParts(mlp.inter, mlp.gated)};
    case AdapterSite::kDown:
      return {mlp.inter > 0 ? 1 : 0, mlp.inter, {spec.hidden}};
    case AdapterSite::kRowGate:
      return {mlp.row_gate ? 1 : 0, spec.hidden, {1}};
    case AdapterSite::kRouter:
      return {moe.n_experts > 0 ? 1 : 0, spec.hidden, {moe.n_experts}};
    case AdapterSite::kExpertUp:
      return {moe.n_here(), spec.hidden, UpParts(moe.inter, true)};
    case AdapterSite::kExpertDown:
      return {moe.n_here(), moe.inter, {spec.hidden}};
    case AdapterSite::kAttentionNorm:
      return {has_attention && layer.pre_norm ? 1 : 0, 1, {spec.hidden}};
    case AdapterSite::kAttentionPostNorm:
      return {has_attention && (layer.post_norm || layer.stream_norm) ? 1 : 0, 1, {spec.hidden}};
    case AdapterSite::kMlpNorm:
      return {has_mlp && layer.pre_norm ? 1 : 0, 1, {spec.hidden}};
    case AdapterSite::kMlpPostNorm:
      return {has_mlp && (layer.post_norm || layer.stream_norm) ? 1 : 0, 1, {spec.hidden}};
    default:
      return ShapeInAttention(spec, layer.attention, site);
  }
}

}  // namespace

std::vector<HeadPart> HeadPartsOf(const ModelSpec& spec) {
  int64_t first = 0;
  int64_t end = spec.vocab;
  if (spec.is_part()) {
    first = spec.vocab_borders[static_cast<size_t>(spec.rank)];
    end = spec.vocab_borders[static_cast<size_t>(spec.rank) + 1];
  }
  std::vector<HeadPart> own;
  int32_t part = 0;
  int64_t begin = 0;  // of the part
  for (const int64_t rows : HeadParts(spec.vocab)) {
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(begin + rows, end);
    if (from < to) own.push_back({.of_model = part, .first = from - begin, .count = to - from});
    begin += rows;
    ++part;
  }
  return own;
}

SiteShape ShapeOf(const ModelSpec& spec, int32_t layer, AdapterSite site) {
  SiteShape shape = layer == kModelLayer
                        ? ShapeInModel(spec, site)
                        : ShapeInLayer(spec, spec.layers[static_cast<size_t>(layer)], site);
  if (shape.members == 0) shape.parts.clear();
  return shape;
}

bool IsNorm(AdapterSite site) {
  switch (site) {
    case AdapterSite::kAttentionNorm:
    case AdapterSite::kAttentionPostNorm:
    case AdapterSite::kMlpNorm:
    case AdapterSite::kMlpPostNorm:
    case AdapterSite::kQueryNorm:
    case AdapterSite::kKeyNorm:
    case AdapterSite::kFinalNorm:
      return true;
    default:
      return false;
  }
}

}  // namespace heddle::engine
