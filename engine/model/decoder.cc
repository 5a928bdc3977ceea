#include "engine/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(kernels::Device& device,
                                                         const ModelSpec& spec,
                                                         const ModelWeights& weights,
                                                         int32_t max_batch_tokens) {
  for (const LayerSpec& layer : spec.layers) {
    if (layer.moe.apart) continue;
    // Experts add to the stream while it may still be read, and do so without a norm behind them.
    HEDDLE_CHECK(layer.moe.n_experts == 0 ||
                     (layer.pre_norm && !layer.post_norm && layer.wiring == Wiring::kSequential),
                 "experts need a norm of their input alone");
  }
  std::unique_ptr<Decoder> decoder(new Decoder(spec, weights));
  decoder->dtype_ = device.activation_dtype();
  HEDDLE_RETURN_IF_ERROR(decoder->AllocateBuffers(device, max_batch_tokens));
  HEDDLE_RETURN_IF_ERROR(decoder->PrepareRotations(device, max_batch_tokens));
  return decoder;
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
  query_rotations_.resize(rotation_of_layer_.size());
  for (size_t layer = 0; layer < query_rotations_.size(); ++layer) {
    const int32_t rotation = rotation_of_layer_[layer];
    if (rotation < 0) continue;
    query_rotations_[layer] = {rotations_[static_cast<size_t>(rotation)].inv_freq,
                               spec_.layers[layer].attention.rope.layout};
  }
  return absl::OkStatus();
}

Tensor Decoder::View(kernels::Buffer& buffer, int32_t rows, int32_t cols) const {
  return {buffer.data(), rows, cols, cols};
}

kernels::NormArgs Decoder::NormOf(const NormWeights& norm, Tensor x, Tensor out) const {
  return {.kind = spec_.norm,
          .x = x,
          .residual = {},
          .weight = norm.weight.data(),
          .bias = norm.bias.data(),
          .eps = spec_.norm_eps,
          .weight_offset = spec_.norm_weight_offset,
          .out = out};
}

Decoder::BlockInput Decoder::Unnormed(int32_t layer, const NormWeights& norm, AdapterSite site,
                                      int32_t n_tokens) const {
  const Tensor x = View(*x_, n_tokens, spec_.hidden);
  if (!spec_.layers[layer].pre_norm) return {x, std::nullopt};
  const Tensor normed = View(*normed_, n_tokens, spec_.hidden);
  kernels::NormArgs args = NormOf(norm, x, normed);
  args.adapters = Adapters(layer, site);
  return {normed, args};
}

Decoder::BlockInput Decoder::InputOf(int32_t layer, const NormWeights& norm, AdapterSite site,
                                     int32_t n_tokens) {
  BlockInput in = Unnormed(layer, norm, site, n_tokens);
  if (std::exchange(is_normed_, false)) in.norm.reset();
  return in;
}

Decoder::BlockInput Decoder::InputOfAttention(int32_t layer, int32_t n_tokens) {
  const LayerSpec& spec = spec_.layers[layer];
  switch (spec.attention_input) {
    case AttentionInput::kRawStream:
      return {Stream(n_tokens), std::nullopt};
    case AttentionInput::kPair:
      return {pair_, std::nullopt};
    case AttentionInput::kShared:
      return {View(*normed_, n_tokens, spec_.hidden), std::nullopt};
    case AttentionInput::kStream:
      break;
  }
  return InputOf(layer, weights_.layers[layer].attention_norm, AdapterSite::kAttentionNorm,
                 n_tokens);
}

Tensor Decoder::Normed(kernels::Ops& ops, const BlockInput& in) {
  if (in.norm.has_value()) ops.Norm(*in.norm);
  return in.x;
}

kernels::LinearArgs Decoder::LastProduct(int32_t layer, AdapterSite site, Tensor in) const {
  const LayerWeights& weights = weights_.layers[layer];
  const LinearWeights& linear = site == AdapterSite::kOut ? weights.out : weights.down;
  return {.x = in,
          .weight = linear.matrix.get(),
          .bias = linear.bias.data(),
          .epilogue = kernels::Epilogue::kAdd,
          .out = Stream(static_cast<int32_t>(in.rows)),
          .adapters = Adapters(layer, site)};
}

void Decoder::AddToStream(kernels::Ops& ops, int32_t layer, AdapterSite site, Tensor in) {
  const LayerSpec& spec = spec_.layers[layer];
  if (spec.wiring == Wiring::kLadder) return AddLater(ops, layer, site, in);
  const LayerWeights& weights = weights_.layers[layer];
  const bool is_attention = site == AdapterSite::kOut;
  const bool is_part = is_attention ? spec.attention_is_part : spec.mlp_is_part;
  const NormWeights& post_norm = is_attention ? weights.attention_post_norm : weights.mlp_post_norm;
  kernels::LinearArgs args = LastProduct(layer, site, in);
  const Tensor x = args.out;
  if (!spec.post_norm) {
    if (is_part) {
      std::optional<kernels::NormArgs> next;
      if (!spec.stream_norm) next = NormBehind(layer, site, static_cast<int32_t>(in.rows));
      AddOfRanks(ops, args, {}, next);
    } else {
      ops.Linear(args);
    }
    if (!spec.stream_norm) return;
    kernels::NormArgs behind = NormOf(post_norm, x, x);
    behind.adapters =
        Adapters(layer, is_attention ? AdapterSite::kAttentionPostNorm : AdapterSite::kMlpPostNorm);
    return ops.Norm(behind);
  }
  const Tensor added = View(*normed_, static_cast<int32_t>(in.rows), spec_.hidden);
  if (is_part) {
    AddOfRanks(ops, args, added, std::nullopt);
  } else {
    args.epilogue = kernels::Epilogue::kNone;
    args.out = added;
    ops.Linear(args);
  }
  kernels::NormArgs norm = NormOf(post_norm, added, added);
  norm.adapters =
      Adapters(layer, is_attention ? AdapterSite::kAttentionPostNorm : AdapterSite::kMlpPostNorm);
  ops.Norm(norm);
  // Only the first half of this norm is used: residual += x.
  ops.Norm({.kind = spec_.norm, .x = added, .residual = x, .eps = spec_.norm_eps, .out = added});
}

void Decoder::NormQk(kernels::Ops& ops, int32_t layer, Tensor q, Tensor k) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  if (!attention.head_borders.empty()) {
    NormHeadsOfRanks(ops, q, weights.q_norm, attention.head_borders, attention.head_dim,
                     Adapters(layer, AdapterSite::kQueryNorm));
    NormHeadsOfRanks(ops, k, weights.k_norm, attention.kv_head_borders, attention.head_dim,
                     Adapters(layer, AdapterSite::kKeyNorm));
    return;
  }
  kernels::NormArgs args{.kind = NormKind::kRms,
                         .x = q,
                         .weight = weights.q_norm.data(),
                         .eps = spec_.norm_eps,
                         .weight_offset = spec_.norm_weight_offset,
                         .out = q,
                         .adapters = Adapters(layer, AdapterSite::kQueryNorm)};
  ops.Norm(args);
  args.x = args.out = k;
  args.adapters = Adapters(layer, AdapterSite::kKeyNorm);
  args.weight = weights.k_norm.data();
  ops.Norm(args);
}

void Decoder::Attention(kernels::Ops& ops, int32_t layer, int32_t n_tokens,
                        const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  if (attention.mla.kv_rank > 0) return LatentAttention(ops, layer, n_tokens, cache);
  BlockInput in = InputOfAttention(layer, n_tokens);
  if (NextSharesInput(layer)) in = {Normed(ops, in), std::nullopt};
  const bool has_laurel = spec_.layers[layer].laurel_rank > 0;
  if (has_laurel) in = {AddLaurel(ops, layer, in), std::nullopt};
  if (attention.linear) {
    return AddToStream(ops, layer, AdapterSite::kOut, Normed(ops, in));
  }
  if (attention.conv.channels > 0) return Convolve(ops, layer, in, n_tokens, cache);
  if (attention.recurrence.is_here()) return Recur(ops, layer, in, n_tokens, cache);
  if (attention.wkv.is_here()) return MixTime(ops, layer, Normed(ops, in), cache);
  if (attention.memory.is_here()) return ReadMemory(ops, layer, in, n_tokens);
  if (attention.n_heads == 0) return AttendWithoutHeads(ops, layer, n_tokens);
  const Tensor product = Spread(*qkv_, strides_.qkv, n_tokens, attention.product_dim());
  // Differences take pairs of heads as rows.
  const int64_t attended_dim = attention.attended_dim();
  const int64_t stride = attention.differential.is_here ? attended_dim : strides_.attended;
  Tensor attended = Spread(*attended_, stride, n_tokens, attended_dim);
  const Tensor q = MakeHeads(ops, layer,
                             {.x = in.x,
                              .weight = weights.qkv.matrix.get(),
                              .bias = weights.qkv.bias.data(),
                              .out = product,
                              .adapters = Adapters(layer, AdapterSite::kQkv),
                              .norm = in.norm},
                             cache);
  if (const SharpenSpec& sharpen = attention.sharpen; sharpen.factor != 0.0f) {
    ops.Sharpen({q, sharpen.factor, sharpen.length, sharpen.offset});
  }
  ops.Attention({.q = q,
                 .n_heads = attention.n_heads,
                 .half_keys = attention.differential.is_here,
                 .cache = cache.layer(KvLayerOf(layer)),
                 .scale = attention.scale,
                 .window = attention.window,
                 .in_chunks = attention.in_chunks,
                 .in_order = attention.in_order,
                 .both_ways = attention.both_ways,
                 .bias = {weights_.distances.data(), weights_.distance_reach},
                 .softcap = attention.softcap,
                 .sinks = weights.sinks.data(),
                 .out = attended,
                 .rotation = RotationOf(layer)});
  if (attention.gated) {
    ops.GateElements(Columns(product, attention.qkv_dim(), attended.cols), attended);
  }
  if (attention.differential.is_here) attended = Differences(ops, layer, attended);
  Scale(ops, attention.out_scale, attended);
  AddToStream(ops, layer, AdapterSite::kOut, attended);
  if (has_laurel) Scale(ops, std::sqrt(0.5f), Stream(n_tokens));
}

const kernels::QueryRotation* Decoder::RotationOf(int32_t layer) const {
  const auto at = static_cast<size_t>(layer);
  return rotation_of_layer_[at] < 0 ? nullptr : &query_rotations_[at];
}

kernels::RopeKvWriteArgs Decoder::HeadsOf(int32_t layer, Tensor out, const KvStorage& cache) const {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t q_cols = int64_t{attention.n_heads} * attention.head_dim;
  const int64_t kv_cols = int64_t{attention.n_kv_heads} * attention.head_dim;
  const int32_t rotation = rotation_of_layer_[layer];
  const bool norm_heads = attention.qk_norm == QkNorm::kPerHead;
  const bool has_keys = attention.kv_layer < 0;
  return {
      .q = Columns(out, 0, q_cols),
      .k = has_keys ? Columns(out, q_cols, kv_cols) : Tensor{},
      .v = has_keys ? Columns(out, q_cols + kv_cols, kv_cols) : Tensor{},
      .n_heads = static_cast<int32_t>(q_cols / attention.cached_dim()),
      .q_norm = norm_heads ? weights.q_norm.data() : nullptr,
      .k_norm = norm_heads && has_keys ? weights.k_norm.data() : nullptr,
      .q_norm_adapters = norm_heads ? Adapters(layer, AdapterSite::kQueryNorm) : nullptr,
      .k_norm_adapters = norm_heads && has_keys ? Adapters(layer, AdapterSite::kKeyNorm) : nullptr,
      .norm_eps = spec_.norm_eps,
      .norm_weight_offset = spec_.norm_weight_offset,
      .norms_last = attention.qk_norms_last,
      .cos_sin =
          rotation < 0 ? nullptr : static_cast<const float*>(rotations_[rotation].cos_sin->data()),
      .rotary_dim = attention.rope.rotary_dim,
      .layout = attention.rope.layout,
      .cache = cache.layer(KvLayerOf(layer))};
}

Tensor Decoder::MakeHeads(kernels::Ops& ops, int32_t layer, const kernels::LinearArgs& product,
                          const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const LayerWeights& weights = weights_.layers[layer];
  const kernels::RopeKvWriteArgs heads = HeadsOf(layer, product.out, cache);
  const bool norms_all = attention.qk_norm == QkNorm::kFullWidth;
  const bool norms_values = attention.value_norm && heads.v.data != nullptr;
  if (!norms_all && !norms_values && weights.segments.data() == nullptr) {
    ops.ProjectHeads(product, heads);
    return heads.q;
  }
  ops.Linear(product);
  const int64_t q_cols = heads.q.cols;
  const int64_t kv_cols = int64_t{attention.n_kv_heads} * attention.head_dim;
  if (norms_all) NormQk(ops, layer, heads.q, Columns(product.out, q_cols, kv_cols));
  if (weights.segments.data() != nullptr) {
    ops.AddSegments({.table = weights.segments.data(),
                     .n_segments = attention.segments,
                     .width = attention.head_dim,
                     .x = Columns(product.out, q_cols, 2 * kv_cols)});
  }
  if (norms_values) NormValues(ops, attention, heads.v);
  ops.RopeKvWrite(heads);
  return heads.q;
}

void Decoder::WriteKeys(kernels::Ops& ops, Tensor states, const KvStorage& cache) {
  ComputeAngles(ops);
  for (int32_t layer = 0; layer < spec_.n_layers(); ++layer) {
    const LayerWeights& weights = weights_.layers[layer];
    const int64_t cols = spec_.layers[layer].attention.qkv_dim();
    const Tensor qkv = View(*qkv_, static_cast<int32_t>(states.rows), static_cast<int32_t>(cols));
    MakeHeads(ops, layer,
              {.x = states,
               .weight = weights.qkv.matrix.get(),
               .bias = weights.qkv.bias.data(),
               .out = qkv},
              cache);
  }
}

Tensor Decoder::Stream(int32_t n_tokens) const { return View(*x_, n_tokens, spec_.hidden); }

void Decoder::ComputeAngles(kernels::Ops& ops) {
  for (Rotation& rotation : rotations_) {
    ops.RopeAngles({.inv_freq = rotation.inv_freq,
                    .scale = rotation.spec.attention_factor,
                    .cos_sin = static_cast<float*>(rotation.cos_sin->data())});
  }
}

void Decoder::RunLayers(kernels::Ops& ops, int32_t n_tokens, const KvStorage& cache, Tensor pair) {
  pair_ = pair;
  ComputeAngles(ops);
  RunRange(ops, 0, spec_.n_layers(), n_tokens, cache);
  if (spec_.stage + 1 == spec_.n_stages) AddLate(ops, std::nullopt);
}

void Decoder::RunRange(kernels::Ops& ops, int32_t begin, int32_t end, int32_t n_tokens,
                       const KvStorage& cache) {
  for (int32_t layer = begin; layer < end; ++layer) {
    KeepStream(ops, layer, Stream(n_tokens));
    PredictStreams(ops, layer, n_tokens);
    const Wiring wiring = spec_.layers[layer].wiring;
    if (wiring != Wiring::kLadder && spec_.StageOf(layer) == spec_.stage)
      AddLate(ops, std::nullopt);
    const bool parallel = wiring == Wiring::kParallel;
    if (parallel) MlpIn(ops, layer, n_tokens, cache);
    Attention(ops, layer, n_tokens, cache);
    if (!parallel) MlpIn(ops, layer, n_tokens, cache);
    MlpOut(ops, layer, n_tokens);
    EndLayer(ops, layer, n_tokens);
  }
}

void Decoder::BeginStream(kernels::Ops& ops, Tensor x) {
  late_ = {};
  is_normed_ = false;
  if (spec_.stage > 0) {
    ops.RecvRows(x, spec_.stage - 1);
    return RecvLate(ops, static_cast<int32_t>(x.rows));
  }
  Embed(ops, x);
  if (weights_.positions != nullptr) {
    ops.AddPositions(*weights_.positions, spec_.position_offset, x);
  }
  if (weights_.token_types != nullptr) ops.AddTokenTypes(*weights_.token_types, x);
  if (spec_.embedding_norm) ops.Norm(NormOf(weights_.embedding_norm, x, x));
  if (spec_.layer_input_dim > 0) MakeLayerInputs(ops, x);
  BeginStreams(ops, x);
}

void Decoder::RunStage(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows,
                       const KvStorage& cache) {
  if (!kept_here_.empty()) kept_place_ = (kept_place_ + 1) % kept_here_.size();
  Tensor x = View(*x_, n_tokens, spec_.hidden);
  BeginStream(ops, x);
  if (const int32_t split = NarrowsAt(ops, n_tokens, n_logit_rows); split < spec_.n_layers()) {
    rows_left_out_ += n_tokens - n_logit_rows;
    ComputeAngles(ops);
    RunRange(ops, 0, split, n_tokens, cache);
    if (n_logit_rows == 0) return;
    Narrow(ops, n_tokens, n_logit_rows);
    RunRange(ops, split, spec_.n_layers(), n_logit_rows, cache);
    x.rows = n_logit_rows;
  } else {
    RunLayers(ops, n_tokens, cache, {});
  }
  EndStreams(ops, x);
  if (spec_.stage + 1 < spec_.n_stages) {
    PostRows(ops, n_tokens, spec_.stage + 1, &x_);
    PostLate(ops, n_tokens);
  } else {
    KeepFinal(ops, x);
    LeaveStage(ops, x, n_logit_rows);
  }
  if (spec_.n_stages > 1) PostFeatures(ops, n_tokens);
}

void Decoder::LeaveStage(kernels::Ops& ops, Tensor x, int32_t n_logit_rows) {
  if (n_logit_rows == 0) return;
  const Tensor rows = View(*normed_, n_logit_rows, spec_.hidden);
  ops.GatherLogitRows(x, rows);
  if (spec_.n_stages > 1) PostRows(ops, n_logit_rows, 0, &normed_);
}

// With the buffers in turn, a step's rows stay until a step that is submitted when it is done.
void Decoder::PostRows(kernels::Ops& ops, int32_t rows, int32_t to,
                       std::unique_ptr<kernels::Buffer>* from) {
  ops.SendRows(View(**from, rows, spec_.hidden), to);
  std::swap(*from, posted_[next_posted_]);
  next_posted_ = (next_posted_ + 1) % posted_.size();
}

void Decoder::NormLogitRows(kernels::Ops& ops, int32_t n_logit_rows) {
  if (n_logit_rows == 0) return;
  const Tensor rows = View(*normed_, n_logit_rows, spec_.hidden);
  if (spec_.n_stages > 1) ops.RecvRows(rows, spec_.n_stages - 1);
  if (!spec_.final_norm) return;
  kernels::NormArgs norm = NormOf(weights_.final_norm, rows, rows);
  norm.adapters = Adapters(kModelLayer, AdapterSite::kFinalNorm);
  norm.adapter_rows = {.of_logits = true};
  ops.Norm(norm);
}

void Decoder::Forward(kernels::Ops& ops, int32_t n_tokens, int32_t n_logit_rows,
                      const KvStorage& cache) {
  RunStage(ops, n_tokens, n_logit_rows, cache);
  if (spec_.stage == 0) NormLogitRows(ops, n_logit_rows);
}

const void* Decoder::HiddenRow(int32_t row) const {
  return static_cast<const char*>(normed_->data()) + row * kernels::RowBytes(dtype_, spec_.hidden);
}

void Decoder::Logits(kernels::Ops& ops, int32_t first, Tensor logits) {
  Tensor rows = View(*normed_, first + static_cast<int32_t>(logits.rows), spec_.hidden);
  rows.data = static_cast<char*>(rows.data) + first * kernels::RowBytes(dtype_, spec_.hidden);
  rows.rows = logits.rows;
  Tensor own = logits;
  if (spec_.is_part()) {
    const int32_t own_vocab = spec_.own_vocab();
    own = {nullptr, logits.rows, own_vocab, own_vocab};
    if (own_logits_ != nullptr) own.data = own_logits_->data();
  }
  if (weights_.head() != nullptr) {
    ops.Linear({.x = rows,
                .weight = weights_.head(),
                .bias = weights_.head_bias.data(),
                .out = own,
                .out_f32 = true,
                .adapters = Adapters(kModelLayer, AdapterSite::kHead),
                .adapter_rows = {.of_logits = true, .first = first}});
  }
  if (spec_.is_part()) {
    ops.GatherColumns({.part = own, .borders = spec_.vocab_borders, .whole = logits, .root = 0});
  }
  if (logits.data == nullptr) return;
  if (spec_.logit_scale != 1.0f || spec_.logit_softcap > 0.0f) {
    ops.ScaleLogits(logits, spec_.logit_scale, spec_.logit_softcap);
  }
}

}  // namespace heddle::engine
