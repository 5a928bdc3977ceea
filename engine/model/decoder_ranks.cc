// The decoder in a part of a model: what its rank does with the others.
#include <optional>
#include <span>
#include <vector>

#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

void Decoder::Embed(kernels::Ops& ops, Tensor x) {
  if (!spec_.is_part()) {
    ops.Embed(*weights_.embedding, spec_.embedding_scale, x);
    return AdaptEmbedding(ops, x);
  }
  Tensor part;
  if (weights_.embedding != nullptr) {
    part = NextPart(x.rows);
    const int32_t first = spec_.vocab_borders[static_cast<size_t>(spec_.rank)];
    ops.EmbedShare(*weights_.embedding, first, spec_.embedding_scale, part);
    AdaptEmbedding(ops, part);
  }
  ops.AllReduce({.partial = part, .out = x});
}

void Decoder::AdaptEmbedding(kernels::Ops& ops, Tensor x) const {
  const auto* adapters = Adapters(kModelLayer, AdapterSite::kEmbedding);
  if (adapters != nullptr) ops.AdaptEmbedding(*adapters, x);
}

Tensor Decoder::NextPart(int64_t rows) {
  next_part_ = (next_part_ + 1) % parts_.size();
  return View(*parts_[next_part_], static_cast<int32_t>(rows), spec_.hidden);
}

std::optional<kernels::NormArgs> Decoder::NormBehind(int32_t layer, AdapterSite site,
                                                     int32_t n_tokens) const {
  const LayerSpec& spec = spec_.layers[layer];
  if (site == AdapterSite::kOut) {
    const bool has_mlp = spec.mlp.inter > 0 || spec.moe.n_experts > 0;
    if (spec.wiring == Wiring::kParallel || !has_mlp) return std::nullopt;
    return Unnormed(layer, weights_.layers[layer].mlp_norm, AdapterSite::kMlpNorm, n_tokens).norm;
  }
  if (layer + 1 == spec_.n_layers()) return std::nullopt;
  const LayerSpec& next = spec_.layers[layer + 1];
  const AttentionSpec& attention = next.attention;
  const bool has_attention = attention.n_heads > 0 || attention.conv.channels > 0 ||
                             attention.recurrence.is_here() || attention.linear;
  const bool reads_it = spec.wiring == Wiring::kLadder ? next.wiring == Wiring::kLadder
                                                       : next.wiring != Wiring::kParallel;
  const bool is_next = reads_it && has_attention && next.attention_input == AttentionInput::kStream;
  if (!is_next) return std::nullopt;
  return Unnormed(layer + 1, weights_.layers[layer + 1].attention_norm, AdapterSite::kAttentionNorm,
                  n_tokens)
      .norm;
}

void Decoder::AddOfRanks(kernels::Ops& ops, const kernels::LinearArgs& product, Tensor out,
                         const std::optional<kernels::NormArgs>& norm) {
  kernels::AllReduceArgs sum = OwnPart(ops, product, out);
  sum.norm = norm;
  is_normed_ = norm.has_value();
  ops.AllReduce(sum);
}

kernels::AllReduceArgs Decoder::OwnPart(kernels::Ops& ops, kernels::LinearArgs product,
                                        Tensor out) {
  kernels::AllReduceArgs sum{.bias = product.bias, .out = out};
  if (out.data == nullptr) sum.residual = product.out;
  if (product.weight != nullptr) {
    const bool is_begun = part_.data != nullptr;
    if (!is_begun) part_ = NextPart(product.x.rows);
    product.epilogue = is_begun ? kernels::Epilogue::kAdd : kernels::Epilogue::kNone;
    product.bias = nullptr;
    product.out = part_;
    ops.Linear(product);
  }
  sum.partial = part_;
  part_ = {};
  return sum;
}

void Decoder::NormHeadsOfRanks(kernels::Ops& ops, Tensor own, const DeviceVector& weight,
                               std::span<const int32_t> borders, int32_t head_dim,
                               const kernels::AdapterMatrix* adapters) {
  const auto rows = static_cast<int32_t>(own.rows);
  std::vector<int32_t> columns;
  columns.reserve(borders.size());
  for (const int32_t head : borders) columns.push_back(head * head_dim);
  // Columns are gathered in four bytes: two of 16 bits each, of which heads have whole pairs.
  const auto in_words = [this](int64_t elements) {
    return kernels::RowBytes(dtype_, elements) / 4;
  };
  std::vector<int32_t> word_columns;
  word_columns.reserve(columns.size());
  for (const int32_t column : columns) {
    word_columns.push_back(static_cast<int32_t>(in_words(column)));
  }
  const auto as_words = [&](const Tensor& x) {
    return Tensor{x.data, x.rows, in_words(x.cols), in_words(x.stride)};
  };
  Tensor part{nullptr, rows, own.cols, own.cols};
  Tensor whole{nullptr, rows, columns.back(), columns.back()};
  if (own.cols > 0) {
    part = View(*attended_, rows, static_cast<int32_t>(own.cols));
    whole = View(*all_heads_, rows, columns.back());
    ops.CopyRows(own, part);
  }
  ops.GatherColumns({.part = as_words(part), .borders = word_columns, .whole = as_words(whole)});
  if (own.cols == 0) return;
  ops.Norm({.kind = NormKind::kRms,
            .x = whole,
            .weight = weight.data(),
            .eps = spec_.norm_eps,
            .weight_offset = spec_.norm_weight_offset,
            .out = whole,
            .adapters = adapters});
  ops.CopyRows(Columns(whole, columns[static_cast<size_t>(spec_.rank)], own.cols), own);
}

// A rank that has no head still takes part in what the ranks do together.
void Decoder::AttendWithoutHeads(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const LayerSpec& spec = spec_.layers[layer];
  if (!spec.attention_is_part) return;
  const Tensor none{nullptr, n_tokens, 0, 0};
  if (spec.attention.qk_norm == QkNorm::kFullWidth) NormQk(ops, layer, none, none);
  AddToStream(ops, layer, AdapterSite::kOut, none);
}

}  // namespace heddle::engine
