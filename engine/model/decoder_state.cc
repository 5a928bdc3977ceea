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
  const Tensor scanned =
      spec.is_memory ? View(*memory_, static_cast<int32_t>(rows.rows), static_cast<int32_t>(values))
                     : out;
  kernels::RecurrenceArgs args{.shape = spec.shape,
                               .in = rows,
                               .conv = weights.conv.data(),
                               .conv_bias = weights.conv_bias.data(),
                               .decay = own.decay.data(),
                               .skip = own.skip.data(),
                               .gates = !spec.is_memory,
                               .cache = cache.layer(first_kv_layer_ + layer),
                               .page_tokens = cache.page_tokens(),
                               .out = scanned};
  ops.Recurrence(args);
  const Tensor factors =
      View(*q_latent_, static_cast<int32_t>(rows.rows), static_cast<int32_t>(spec.n_factors()));
  ops.Linear({.x = scanned, .weight = own.factors.matrix.get(), .out = factors});
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
  if (!spec.is_memory) return;
  // silu(z) is z times its sigmoid.
  const Tensor gate = Columns(rows, spec.shape.gate_column(), values);
  ops.CopyRows(scanned, out);
  ops.GateElements(gate, out);
  ops.Multiply(gate, out);
}

void Decoder::ReadMemory(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens) {
  const int32_t channels = spec_.layers[layer].attention.memory.channels;
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor gates = View(*attended_, n_tokens, channels);
  ops.Linear({.x = in.x,
              .weight = weights.qkv.matrix.get(),
              .bias = weights.qkv.bias.data(),
              .activation = Activation::kSilu,
              .out = gates,
              .adapters = Adapters(layer, AdapterSite::kQkv),
              .norm = in.norm});
  ops.Multiply(View(*memory_, n_tokens, channels), gates);
  AddToStream(ops, layer, AdapterSite::kOut, gates);
}

// A pair of heads is a row: first what the one gives, then what the other does.
Tensor Decoder::Differences(kernels::Ops& ops, int32_t layer, Tensor attended) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  const int32_t dim = attention.cached_dim();
  const auto pairs = static_cast<int32_t>(attended.rows * attention.n_heads / 2);
  const Tensor both = View(*attended_, pairs, 2 * dim);
  const Tensor second = Columns(both, dim, dim);
  Scale(ops, -weights.lambda, second);
  ops.Norm({.x = second,
            .residual = Columns(both, 0, dim),
            .weight = weights.pair_norm.data(),
            .eps = attention.differential.norm_eps,
            .out = View(*heads_, pairs, dim)});
  return View(*heads_, static_cast<int32_t>(attended.rows), attention.n_heads * attention.head_dim);
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
