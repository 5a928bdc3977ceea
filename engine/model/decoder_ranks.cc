// The decoder in a part of a model: what its rank does with the others.
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
  next_part_ = 1 - next_part_;
  return View(*parts_[next_part_], static_cast<int32_t>(rows), spec_.hidden);
}

void Decoder::AddOfRanks(kernels::Ops& ops, kernels::LinearArgs product, Tensor out) {
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
  ops.AllReduce(sum);
}

void Decoder::NormHeadsOfRanks(kernels::Ops& ops, Tensor own, const DeviceVector& weight,
                               std::span<const int32_t> borders, int32_t head_dim,
                               const kernels::AdapterMatrix* adapters) {
  const auto rows = static_cast<int32_t>(own.rows);
  std::vector<int32_t> columns;
  for (const int32_t head : borders) columns.push_back(head * head_dim);
  Tensor part{nullptr, rows, own.cols, own.cols};
  Tensor whole{nullptr, rows, columns.back(), columns.back()};
  if (own.cols > 0) {
    part = View(*attended_, rows, static_cast<int32_t>(own.cols));
    whole = View(*all_heads_, rows, columns.back());
    ops.CopyRows(own, part);
  }
  ops.GatherColumns({.part = part, .borders = columns, .whole = whole});
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
