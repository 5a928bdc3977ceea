#include "engine/model/decoder.h"

#include <algorithm>

#include "base/status.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

struct Widths {
  int64_t qkv = 0;
  int64_t attended = 0;
  int64_t inner = 0;
};

int64_t QkvWidth(const AttentionSpec& attention) {
  return int64_t{attention.n_heads + 2 * attention.n_kv_heads} * attention.head_dim;
}

Widths WidestLayer(const ModelSpec& spec) {
  Widths widths;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    widths.qkv = std::max(widths.qkv, QkvWidth(attention));
    widths.attended =
        std::max<int64_t>(widths.attended, int64_t{attention.n_heads} * attention.head_dim);
    widths.inner = std::max<int64_t>(widths.inner, layer.mlp.inter);
  }
  return widths;
}

// Columns [first, first + cols) of `tensor`.
template <typename T>
Tensor Columns(Tensor tensor, int64_t first, int64_t cols) {
  return {static_cast<T*>(tensor.data) + first, tensor.rows, cols, tensor.stride};
}

Tensor Columns(Tensor tensor, kernels::DType dtype, int64_t first, int64_t cols) {
  return dtype == kernels::DType::kF32 ? Columns<float>(tensor, first, cols)
                                       : Columns<uint16_t>(tensor, first, cols);
}

}  // namespace

int64_t Decoder::ActivationBytes(const ModelSpec& spec, int32_t max_batch_tokens,
                                 kernels::DType dtype) {
  const Widths widths = WidestLayer(spec);
  const int64_t columns = 2 * int64_t{spec.hidden} + widths.qkv + widths.attended + widths.inner;
  return max_batch_tokens * kernels::RowBytes(dtype, columns);
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(kernels::Device& device,
                                                         const ModelSpec& spec,
                                                         const ModelWeights& weights,
                                                         int32_t max_batch_tokens) {
  std::unique_ptr<Decoder> decoder(new Decoder(spec, weights));
  decoder->dtype_ = device.activation_dtype();
  HEDDLE_RETURN_IF_ERROR(decoder->AllocateBuffers(device, max_batch_tokens));
  HEDDLE_RETURN_IF_ERROR(decoder->PrepareRotations(device, max_batch_tokens));
  return decoder;
}

absl::Status Decoder::AllocateBuffers(kernels::Device& device, int32_t max_batch_tokens) {
  const Widths widths = WidestLayer(spec_);
  const std::pair<std::unique_ptr<kernels::Buffer>*, int64_t> wanted[] = {
      {&x_, spec_.hidden},           {&normed_, spec_.hidden}, {&qkv_, widths.qkv},
      {&attended_, widths.attended}, {&inner_, widths.inner},
  };
  for (const auto& [buffer, cols] : wanted) {
    HEDDLE_ASSIGN_OR_RETURN(*buffer,
                            device.Allocate(max_batch_tokens * kernels::RowBytes(dtype_, cols)));
  }
  return absl::OkStatus();
}

absl::Status Decoder::PrepareRotations(kernels::Device& device, int32_t max_batch_tokens) {
  for (const LayerSpec& layer : spec_.layers) {
    const RopeSpec& rope = layer.attention.rope;
    if (rope.rotary_dim == 0) {
      rotation_of_layer_.push_back(-1);
      continue;
    }
    auto same = std::find_if(rotations_.begin(), rotations_.end(),
                             [&](const Rotation& rotation) { return rotation.spec == rope; });
    rotation_of_layer_.push_back(static_cast<int32_t>(same - rotations_.begin()));
    if (same != rotations_.end()) continue;
    Rotation rotation{.spec = rope, .inv_freq = InverseFrequencies(rope), .cos_sin = nullptr};
    HEDDLE_ASSIGN_OR_RETURN(
        rotation.cos_sin,
        device.Allocate(int64_t{max_batch_tokens} * rope.rotary_dim * int64_t{sizeof(float)}));
    rotations_.push_back(std::move(rotation));
  }
  return absl::OkStatus();
}

Tensor Decoder::View(kernels::Buffer& buffer, int32_t rows, int32_t cols) const {
  return {buffer.data(), rows, cols, cols};
}

void Decoder::Norm(kernels::Ops& ops, const NormWeights& norm, Tensor x, Tensor out) {
  ops.Norm({.kind = spec_.norm,
            .x = x,
            .residual = {},
            .weight = norm.weight.data(),
            .bias = norm.bias.data(),
            .eps = spec_.norm_eps,
            .weight_offset = spec_.norm_weight_offset,
            .out = out});
}

Tensor Decoder::BlockInput(kernels::Ops& ops, const LayerSpec& layer, const NormWeights& norm,
                           int32_t n_tokens) {
  const Tensor x = View(*x_, n_tokens, spec_.hidden);
  if (!layer.pre_norm) return x;
  const Tensor normed = View(*normed_, n_tokens, spec_.hidden);
  Norm(ops, norm, x, normed);
  return normed;
}

void Decoder::AddToStream(kernels::Ops& ops, const LayerSpec& layer, const LinearWeights& linear,
                          const NormWeights& post_norm, Tensor in) {
  const Tensor x = View(*x_, static_cast<int32_t>(in.rows), spec_.hidden);
  kernels::LinearArgs args{.x = in,
                           .weight = linear.matrix.get(),
                           .bias = linear.bias.data(),
                           .epilogue = kernels::Epilogue::kAdd,
                           .out = x};
  if (!layer.post_norm) return ops.Linear(args);
  const Tensor added = View(*normed_, static_cast<int32_t>(in.rows), spec_.hidden);
  args.epilogue = kernels::Epilogue::kNone;
  args.out = added;
  ops.Linear(args);
  Norm(ops, post_norm, added, added);
  // Only for its first half, residual += x.
  ops.Norm({.kind = spec_.norm, .x = added, .residual = x, .eps = spec_.norm_eps, .out = added});
}

void Decoder::NormQk(kernels::Ops& ops, int32_t layer, Tensor q, Tensor k) {
  const LayerWeights& weights = weights_.layers[layer];
  kernels::NormArgs args{.kind = NormKind::kRms,
                         .x = q,
                         .weight = weights.q_norm.data(),
                         .eps = spec_.norm_eps,
                         .weight_offset = spec_.norm_weight_offset,
                         .out = q};
  ops.Norm(args);
  args.x = args.out = k;
  args.weight = weights.k_norm.data();
  ops.Norm(args);
}

void Decoder::Attention(kernels::Ops& ops, int32_t layer, int32_t n_tokens,
                        const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t q_cols = int64_t{attention.n_heads} * attention.head_dim;
  const int64_t kv_cols = int64_t{attention.n_kv_heads} * attention.head_dim;
  const Tensor qkv = View(*qkv_, n_tokens, static_cast<int32_t>(QkvWidth(attention)));
  const Tensor q = Columns(qkv, dtype_, 0, q_cols);
  const Tensor k = Columns(qkv, dtype_, q_cols, kv_cols);
  const Tensor attended = View(*attended_, n_tokens, static_cast<int32_t>(q_cols));
  const int32_t rotation = rotation_of_layer_[layer];

  ops.Linear({.x = BlockInput(ops, spec_.layers[layer], weights.attention_norm, n_tokens),
              .weight = weights.qkv.matrix.get(),
              .bias = weights.qkv.bias.data(),
              .out = qkv});
  const bool norm_heads = attention.qk_norm == QkNorm::kPerHead;
  if (attention.qk_norm == QkNorm::kFullWidth) NormQk(ops, layer, q, k);
  ops.RopeKvWrite({.q = q,
                   .k = k,
                   .v = Columns(qkv, dtype_, q_cols + kv_cols, kv_cols),
                   .n_heads = attention.n_heads,
                   .q_norm = norm_heads ? weights.q_norm.data() : nullptr,
                   .k_norm = norm_heads ? weights.k_norm.data() : nullptr,
                   .norm_eps = spec_.norm_eps,
                   .norm_weight_offset = spec_.norm_weight_offset,
                   .cos_sin = rotation < 0
                                  ? nullptr
                                  : static_cast<const float*>(rotations_[rotation].cos_sin->data()),
                   .rotary_dim = attention.rope.rotary_dim,
                   .layout = attention.rope.layout,
                   .cache = cache.layer(layer)});
  ops.Attention({.q = q,
                 .n_heads = attention.n_heads,
                 .cache = cache.layer(layer),
                 .scale = attention.scale,
                 .window = attention.window,
                 .softcap = attention.softcap,
                 .out = attended});
  AddToStream(ops, spec_.layers[layer], weights.out, weights.attention_post_norm, attended);
}

void Decoder::MlpIn(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const MlpSpec& mlp = spec_.layers[layer].mlp;
  const LayerWeights& weights = weights_.layers[layer];
  ops.Linear({.x = BlockInput(ops, spec_.layers[layer], weights.mlp_norm, n_tokens),
              .weight = weights.up.matrix.get(),
              .bias = weights.up.bias.data(),
              .epilogue = mlp.gated ? kernels::Epilogue::kGated : kernels::Epilogue::kNone,
              .activation = mlp.activation,
              .out = View(*inner_, n_tokens, mlp.inter)});
}

void Decoder::MlpOut(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor inner = View(*inner_, n_tokens, spec.mlp.inter);
  AddToStream(ops, spec, weights.down, weights.mlp_post_norm, inner);
}

void Decoder::Forward(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows,
                      const KvStorage& cache) {
  const Tensor x = View(*x_, n_tokens, spec_.hidden);
  ops.Embed(*weights_.embedding, spec_.embedding_scale, x);
  if (weights_.positions != nullptr) ops.AddPositions(*weights_.positions, 0, x);
  for (Rotation& rotation : rotations_) {
    ops.RopeAngles({.inv_freq = rotation.inv_freq,
                    .scale = rotation.spec.attention_factor,
                    .cos_sin = static_cast<float*>(rotation.cos_sin->data())});
  }
  for (int32_t layer = 0; layer < spec_.n_layers(); ++layer) {
    const bool parallel = spec_.layers[layer].parallel_residual;
    if (parallel) MlpIn(ops, layer, n_tokens);
    Attention(ops, layer, n_tokens, cache);
    if (!parallel) MlpIn(ops, layer, n_tokens);
    MlpOut(ops, layer, n_tokens);
  }
  if (n_logit_rows == 0) return;
  const Tensor rows = View(*normed_, n_logit_rows, spec_.hidden);
  ops.GatherLogitRows(x, rows);
  Norm(ops, weights_.final_norm, rows, rows);
}

void Decoder::Logits(kernels::Ops& ops, int32_t first, Tensor logits) {
  Tensor rows = View(*normed_, first + static_cast<int32_t>(logits.rows), spec_.hidden);
  rows.data = static_cast<char*>(rows.data) + first * kernels::RowBytes(dtype_, spec_.hidden);
  rows.rows = logits.rows;
  ops.Linear({.x = rows, .weight = &weights_.head(), .out = logits, .out_f32 = true});
  if (spec_.logit_scale != 1.0f || spec_.logit_softcap > 0.0f) {
    ops.ScaleLogits(logits, spec_.logit_scale, spec_.logit_softcap);
  }
}

}  // namespace heddle::engine
