// The decoder's layers with state in place of keys and values.
#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

void Decoder::Convolve(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens,
                       const KvStorage& cache) {
  const ConvSpec& conv = spec_.layers[layer].attention.conv;
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor bcx = View(*qkv_, n_tokens, 3 * conv.channels);
  const Tensor out = View(*attended_, n_tokens, conv.channels);
  ops.Linear({.x = in.x,
              .weight = weights.qkv.matrix.get(),
              .bias = weights.qkv.bias.data(),
              .out = bcx,
              .adapters = Adapters(layer, AdapterSite::kQkv),
              .norm = in.norm});
  ops.ShortConv({.bcx = bcx,
                 .weight = weights.conv.data(),
                 .bias = weights.conv_bias.data(),
                 .taps = conv.taps,
                 .cache = cache.layer(first_kv_layer_ + layer),
                 .out = out});
  AddToStream(ops, layer, AdapterSite::kOut, out);
}

void Decoder::ScaleSections(kernels::Ops& ops, const RecurrenceSpec& spec, Tensor rows) const {
  const RecurrenceScales& scales = spec.scales;
  const kernels::RecurrenceShape& shape = spec.shape;
  Scale(ops, scales.query, Columns(rows, 0, shape.keys()));
  Scale(ops, scales.key, Columns(rows, shape.keys(), shape.keys()));
  Scale(ops, scales.value, Columns(rows, 2 * shape.keys(), shape.values()));
  Scale(ops, scales.gate, Columns(rows, shape.gate_column(), shape.values()));
  Scale(ops, scales.step, Columns(rows, shape.step_column(), shape.n_heads));
}

void Decoder::Select(kernels::Ops& ops, int32_t layer, Tensor rows, Tensor out,
                     const KvStorage& cache) {
  const RecurrenceSpec& spec = spec_.layers[layer].attention.recurrence;
  const LayerWeights& weights = weights_.layers[layer];
  const RecurrenceWeights& own = weights.recurrence;
  const int64_t values = spec.shape.values();
  kernels::RecurrenceArgs args{.shape = spec.shape,
                               .in = rows,
                               .conv = weights.conv.data(),
                               .conv_bias = weights.conv_bias.data(),
                               .decay = own.decay.data(),
                               .skip = own.skip.data(),
                               .cache = cache.layer(first_kv_layer_ + layer),
                               .page_tokens = cache.page_tokens(),
                               .out = out};
  ops.Recurrence(args);
  const Tensor factors =
      View(*q_latent_, static_cast<int32_t>(rows.rows), static_cast<int32_t>(spec.n_factors()));
  ops.Linear({.x = out, .weight = own.factors.matrix.get(), .out = factors});
  const Tensor steps = Columns(factors, 0, spec.step_rank);
  const Tensor keys = Columns(factors, spec.step_rank, spec.shape.key_dim);
  const Tensor queries =
      Columns(factors, spec.step_rank + int64_t{spec.shape.key_dim}, spec.shape.key_dim);
  const auto norm = [&](Tensor x, const DeviceVector& weight) {
    ops.Norm({.x = x, .weight = weight.data(), .eps = spec.factor_norm_eps, .out = x});
  };
  if (spec.norms_factors) {
    norm(steps, own.step_norm);
    norm(keys, own.key_norm);
    norm(queries, own.query_norm);
  }
  ops.Linear({.x = steps,
              .weight = own.steps.matrix.get(),
              .bias = own.steps.bias.data(),
              .out = Columns(rows, 0, values)});
  args.factors = Columns(factors, spec.step_rank, 2 * int64_t{spec.shape.key_dim});
  ops.Recurrence(args);
}

void Decoder::Recur(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens,
                    const KvStorage& cache) {
  const RecurrenceSpec& spec = spec_.layers[layer].attention.recurrence;
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor rows = View(*qkv_, n_tokens, static_cast<int32_t>(spec.shape.cols()));
  const Tensor out = View(*attended_, n_tokens, static_cast<int32_t>(spec.shape.values()));
  ops.Linear({.x = in.x,
              .weight = weights.qkv.matrix.get(),
              .bias = weights.qkv.bias.data(),
              .out = rows,
              .adapters = Adapters(layer, AdapterSite::kQkv),
              .norm = in.norm});
  ScaleSections(ops, spec, rows);
  if (spec.shape.is_selective()) {
    Select(ops, layer, rows, out, cache);
    return AddToStream(ops, layer, AdapterSite::kOut, out);
  }
  ops.Recurrence({.shape = spec.shape,
                  .in = rows,
                  .conv = weights.conv.data(),
                  .conv_bias = weights.conv_bias.data(),
                  .decay = weights.recurrence.decay.data(),
                  .step_bias = weights.recurrence.step_bias.data(),
                  .skip = weights.recurrence.skip.data(),
                  .norm = weights.recurrence.norm.data(),
                  .norm_width = spec.norm_width,
                  .norm_per_value = spec.norm_per_value,
                  .gates_first = spec.gates_first,
                  .norm_eps = spec.norm_eps,
                  .min_step = spec.min_step,
                  .max_step = spec.max_step,
                  .cache = cache.layer(first_kv_layer_ + layer),
                  .page_tokens = cache.page_tokens(),
                  .out = out});
  Scale(ops, spec.scales.out, out);
  AddToStream(ops, layer, AdapterSite::kOut, out);
}

}  // namespace heddle::engine
