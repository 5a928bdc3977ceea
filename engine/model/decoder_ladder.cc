// The decoder's layers whose blocks read the stream before the last block adds to it
// (Wiring::kLadder).
#include <optional>

#include "engine/model/decoder.h"
#include "kernels/late_sums.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

// A device that cannot begin sums makes them where they end.
void EndSum(kernels::Ops& ops, const kernels::AllReduceArgs& sum) {
  auto* late = dynamic_cast<kernels::LateSums*>(&ops);
  return late != nullptr ? late->EndAllReduce(sum) : ops.AllReduce(sum);
}

}  // namespace

void Decoder::AddLater(kernels::Ops& ops, int32_t layer, AdapterSite site, Tensor in) {
  const LayerSpec& spec = spec_.layers[layer];
  const bool is_part = site == AdapterSite::kOut ? spec.attention_is_part : spec.mlp_is_part;
  if (!is_part) {
    const size_t place = late_.kind == Late::Kind::kRows ? 1 - late_.place : 0;
    kernels::LinearArgs product = LastProduct(layer, site, in);
    product.epilogue = kernels::Epilogue::kNone;
    product.out = View(*late_rows_[place], static_cast<int32_t>(in.rows), spec_.hidden);
    ops.Linear(product);
    AddLate(ops, std::nullopt);
    late_ = {.kind = Late::Kind::kRows, .place = place, .rows = product.out, .sum = {}};
    return;
  }
  const kernels::AllReduceArgs sum = OwnPart(ops, LastProduct(layer, site, in), {});
  if (auto* late = dynamic_cast<kernels::LateSums*>(&ops)) late->BeginAllReduce(sum);
  AddLate(ops, NormBehind(layer, site, static_cast<int32_t>(in.rows)));
  late_ = {.kind = Late::Kind::kSum, .sum = sum};
}

void Decoder::AddLate(kernels::Ops& ops, const std::optional<kernels::NormArgs>& norm) {
  switch (late_.kind) {
    case Late::Kind::kNothing:
      return;
    case Late::Kind::kSum:
      late_.sum.norm = norm;
      is_normed_ = norm.has_value();
      EndSum(ops, late_.sum);
      break;
    case Late::Kind::kRows:
      // Only the first half of this norm is used: residual += x.
      ops.Norm({.kind = spec_.norm,
                .x = late_.rows,
                .residual = Stream(static_cast<int32_t>(late_.rows.rows)),
                .eps = spec_.norm_eps,
                .out = late_.rows});
      break;
  }
  late_ = {};
}

void Decoder::PostLate(kernels::Ops& ops, int32_t n_tokens) {
  if (!LeavesLate(spec_.stage)) return;
  const size_t place = late_.place;
  if (late_.kind == Late::Kind::kSum) {
    late_.sum.residual = {};
    late_.sum.out = View(*late_rows_[place], n_tokens, spec_.hidden);
    EndSum(ops, late_.sum);
  }
  late_ = {};
  PostRows(ops, n_tokens, spec_.stage + 1, &late_rows_[place]);
}

void Decoder::RecvLate(kernels::Ops& ops, int32_t n_tokens) {
  if (!LeavesLate(spec_.stage - 1)) return;
  late_.kind = Late::Kind::kRows;
  late_.rows = View(*late_rows_[0], n_tokens, spec_.hidden);
  ops.RecvRows(late_.rows, spec_.stage - 1);
}

}  // namespace heddle::engine
