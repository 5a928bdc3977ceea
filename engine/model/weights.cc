#include "engine/model/weights.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/conv_taps.h"
#include "engine/model/expert_sources.h"
#include "engine/model/head_projections.h"
#include "engine/model/row_order.h"
#include "engine/parallel/cut_sources.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::WeightSource;

// Tensors of this size or more release their file pages while they are packed, not only afterwards:
// the last tensor is read when all others are in memory, and would add its size to the peak.
constexpr int64_t kLargeBytes = int64_t{32} << 20;

// Reads a matrix's rows from its file and releases the file's pages behind it.
class ReleasingReader final : public kernels::RowReader {
 public:
  ReleasingReader(const Checkpoint& checkpoint, const CheckpointTensor& tensor)
      : checkpoint_(checkpoint), tensor_(tensor), row_bytes_(RowBytesOf(tensor)) {}

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    CheckpointTensor part = tensor_;
    part.data = tensor_.data.subspan(static_cast<size_t>(begin * row_bytes_),
                                     static_cast<size_t>(count * row_bytes_));
    std::memcpy(out, part.data.data(), part.data.size());
    checkpoint_.DontNeed(part);
  }

  WeightSource source() const {
    WeightSource source = SourceOf(tensor_);
    source.data = nullptr;
    source.reader = this;
    return source;
  }

 private:
  static int64_t RowBytesOf(const CheckpointTensor& tensor) {
    return kernels::RowBytes(*tensor.dtype, tensor.shape.back());
  }

  const Checkpoint& checkpoint_;
  const CheckpointTensor& tensor_;
  const int64_t row_bytes_;
};

// Loads the tensors of one checkpoint onto one device.
class Loader {
 public:
  Loader(kernels::Device& device, const Checkpoint& checkpoint, const NameMap& names,
         const WeightPolicy& policy, const Share& share)
      : device_(device),
        checkpoint_(checkpoint),
        policy_(policy),
        share_(share),
        transposed_(names.transposed_linears),
        qkv_by_kv_head_(names.qkv_by_kv_head),
        up_first_(names.up_first),
        expert_layout_(names.expert_layout) {}

  // Loads a matrix that every family stores as [rows, cols], cut along its rows (embedding, head).
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> VocabTable(const std::string& name) {
    return Table(name, CutRows({share_.vocab}));
  }
  // Loads all of one.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Table(const std::string& name) {
    return Table(name, Cut{});
  }

  // Loads the linear layer whose output features are those of all `names`, in order, with the
  // biases concatenated likewise; empty names are skipped. Keeps what `cut` says.
  using Names = std::initializer_list<const std::string*>;
  absl::StatusOr<LinearWeights> Linear(Names names, Names biases, const Cut& cut = {},
                                       WeightRole role = WeightRole::kMatrix) {
    std::vector<WeightSource> sources;
    std::vector<const CheckpointTensor*> tensors;
    std::vector<std::vector<std::byte>> transposed;
    for (const std::string* name : names) {
      if (name->empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(*name));
      tensors.push_back(tensor);
      sources.push_back(Source(*tensor));
      if (transposed_ && kernels::Info(*tensor->dtype).block_elements != 1) {
        return absl::UnimplementedError(absl::StrCat(
            checkpoint_.path().string(), ": tensor ", *name, " is stored as ",
            std::string(tensor->type_name), " in a family whose matrices lie transposed"));
      }
      if (transposed_) transposed.push_back(Transpose(&sources.back()));
    }
    LinearWeights linear;
    HEDDLE_ASSIGN_OR_RETURN(linear.matrix, Pack(sources, tensors, cut, role));
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values, Values(biases));
    HEDDLE_ASSIGN_OR_RETURN(linear.bias, Upload(CutValues(values, cut)));
    return linear;
  }

  // Concatenates vectors on the device; empty names are skipped, and the result is empty if all
  // are.
  absl::StatusOr<DeviceVector> Vector(Names names) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> values, Values(names));
    return Upload(values);
  }

  absl::StatusOr<std::vector<float>> Values(Names names) {
    std::vector<float> values;
    for (const std::string* name : names) {
      if (name->empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindPlain(*name));
      const auto begin = static_cast<int64_t>(values.size());
      const int64_t count = std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{1},
                                            std::multiplies<>());
      values.resize(begin + count);
      kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), count, values.data() + begin);
    }
    return values;
  }

  absl::StatusOr<DeviceVector> Upload(const std::vector<float>& values) {
    if (values.empty()) return DeviceVector();
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, device_.Allocate(bytes));
    HEDDLE_RETURN_IF_ERROR(device_.Upload(buffer->data(), values.data(), bytes));
    return DeviceVector(std::move(buffer));
  }

  absl::StatusOr<NormWeights> Norm(const std::string& weight, const std::string& bias) {
    NormWeights norm;
    HEDDLE_ASSIGN_OR_RETURN(norm.weight, Vector({&weight}));
    HEDDLE_ASSIGN_OR_RETURN(norm.bias, Vector({&bias}));
    return norm;
  }

  // `spec` and `share` are those of the layer in the whole model.
  absl::StatusOr<LayerWeights> Layer(const LayerNames& names, const LayerSpec& spec,
                                     const LayerShare& share) {
    LayerWeights layer;
    HEDDLE_ASSIGN_OR_RETURN(layer.attention_norm, Norm(names.attn_norm, names.attn_norm_bias));
    HEDDLE_ASSIGN_OR_RETURN(layer.attention_post_norm,
                            Norm(names.attn_post_norm, names.attn_post_norm_bias));
    HEDDLE_RETURN_IF_ERROR(Attention(names, spec.attention, share.attention, &layer));
    HEDDLE_ASSIGN_OR_RETURN(layer.q_norm, Vector({&names.q_norm}));
    HEDDLE_ASSIGN_OR_RETURN(layer.k_norm, Vector({&names.k_norm}));
    if (spec.attention.qk_norm_plain) {
      const std::vector<float> ones(static_cast<size_t>(spec.attention.head_dim), 1.0f);
      HEDDLE_ASSIGN_OR_RETURN(layer.q_norm, Upload(ones));
      HEDDLE_ASSIGN_OR_RETURN(layer.k_norm, Upload(ones));
    }
    HEDDLE_ASSIGN_OR_RETURN(layer.mlp_norm, Norm(names.mlp_norm, names.mlp_norm_bias));
    HEDDLE_ASSIGN_OR_RETURN(layer.mlp_post_norm,
                            Norm(names.mlp_post_norm, names.mlp_post_norm_bias));
    if (spec.mlp.inter > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.up, Up(names, spec.mlp, share.inner));
      HEDDLE_ASSIGN_OR_RETURN(layer.down,
                              Linear({&names.down}, {&names.down_bias}, CutColumns(share.inner)));
    }
    if (spec.mlp.row_gate && share.inner.count > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.row_gate, RowGate(names.row_gate));
    }
    if (spec.moe.n_experts > 0 && share.expert_inner.count > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.moe, Experts(names, spec.moe, share.expert_inner));
    }
    HEDDLE_RETURN_IF_ERROR(LayerInput(names, &layer));
    HEDDLE_RETURN_IF_ERROR(Streams(names, &layer));
    return layer;
  }

  // Loads what lies before and behind all layers' streams.
  absl::Status StreamEnds(const NameMap& names, const ModelSpec& spec, ModelWeights* weights) {
    const int32_t others = spec.altup.count - 1;
    if (others < 1) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(weights->altup_in, Stacked(NumberedNames(names.altup_in, others), {}));
    for (int32_t i = 0; i < others; ++i) {
      const Cut own = CutRows({{int64_t{i} * spec.hidden, spec.hidden}});
      HEDDLE_ASSIGN_OR_RETURN(weights->altup_out.emplace_back(),
                              Stacked(NumberedNames(names.altup_out, others), own));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Table(const std::string& name,
                                                               const Cut& cut) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    WeightSource source = SourceOf(*tensor);  // in GGUF, a table of one row may have one dimension
    const ReleasingReader reader(checkpoint_, *tensor);
    if (tensor->quantized == nullptr && tensor->bytes() >= kLargeBytes) source = reader.source();
    return Pack({&source, 1}, {&tensor, 1}, cut, WeightRole::kTable);
  }

  // Loads the projections of attention or the matrix in its place. A rank without heads has the
  // bias of the output projection alone.
  absl::Status Attention(const LayerNames& names, const AttentionSpec& attention,
                         const HeadShare& share, LayerWeights* layer) {
    if (attention.linear) {
      HEDDLE_ASSIGN_OR_RETURN(layer->out, Linear({&names.o}, {&names.o_bias}));
      return absl::OkStatus();
    }
    if (attention.conv.taps > 0) return Convolution(names, attention.conv, share.channels, layer);
    if (attention.recurrence.shape.taps > 0) {
      return Recurrence(names, attention.recurrence, share.channels, layer);
    }
    if (attention.n_heads == 0) return absl::OkStatus();
    const bool is_latent = attention.mla.kv_rank > 0;
    if (is_latent && share.heads.count > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer->mla, Mla(names, attention, share.heads));
    } else if (share.heads.count > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer->qkv, Qkv(names, attention, share));
    }
    const int64_t value_dim = is_latent ? attention.mla.v_dim : attention.head_dim;
    const Cut heads = CutColumns(Times(share.heads, value_dim));
    HEDDLE_ASSIGN_OR_RETURN(layer->out, Linear({&names.o}, {&names.o_bias}, heads));
    HEDDLE_ASSIGN_OR_RETURN(layer->sinks, Part(names.sinks, CutRows({share.heads})));
    if (share.heads.count > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer->segments, Vector({&names.segments}));
    }
    return absl::OkStatus();
  }

  // A rank has some of the channels.
  absl::Status Convolution(const LayerNames& names, const ConvSpec& conv, Range channels,
                           LayerWeights* layer) {
    HEDDLE_ASSIGN_OR_RETURN(layer->out, Linear({&names.o}, {&names.o_bias}, CutColumns(channels)));
    if (channels.count == 0) return absl::OkStatus();
    std::vector<Range> bcx(3, channels);
    for (size_t i = 1; i < bcx.size(); ++i) bcx[i].first = bcx[i - 1].first + conv.channels;
    HEDDLE_ASSIGN_OR_RETURN(layer->qkv, Linear({&names.qkv}, {&names.qkv_bias}, CutRows(bcx)));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* taps, FindPlain(names.conv));
    HEDDLE_ASSIGN_OR_RETURN(layer->conv, Upload(TapsOf(*taps, conv.taps, {&channels, 1})));
    HEDDLE_ASSIGN_OR_RETURN(layer->conv_bias, Part(names.conv_bias, CutRows({channels})));
    return absl::OkStatus();
  }

  // A rank has some of the key heads, with their heads.
  absl::Status Recurrence(const LayerNames& names, const RecurrenceSpec& spec, Range key_heads,
                          LayerWeights* layer) {
    const Range heads = RecurrenceHeads(spec, key_heads);
    const Range values = Times(heads, spec.shape.value_dim);
    HEDDLE_ASSIGN_OR_RETURN(layer->out, Linear({&names.o}, {&names.o_bias}, CutColumns(values)));
    if (heads.count == 0) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(layer->qkv,
                            Linear({&names.qkv, &names.recur_gate, &names.recur_beta_step,
                                    &names.recur_beta, &names.recur_step},
                                   {&names.qkv_bias}, RecurrenceRowsOf(spec, key_heads)));
    const std::vector<Range> channels = RecurrenceChannels(spec, key_heads);
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* taps, FindPlain(names.conv));
    HEDDLE_ASSIGN_OR_RETURN(layer->conv, Upload(TapsOf(*taps, spec.shape.taps, channels)));
    HEDDLE_ASSIGN_OR_RETURN(layer->conv_bias, Part(names.conv_bias, CutRows(channels)));
    const Cut own = CutRows({heads});
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> decay, Values({&names.recur_decay}));
    for (float& d : decay) d = spec.decay_is_log ? -std::exp(d) : d;
    HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.decay, Upload(CutValues(decay, own)));
    HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.step_bias, Part(names.recur_step_bias, own));
    HEDDLE_ASSIGN_OR_RETURN(layer->recurrence.skip, Part(names.recur_skip, own));
    HEDDLE_ASSIGN_OR_RETURN(
        layer->recurrence.norm,
        Part(names.recur_norm, spec.norm_per_value ? CutRows({values}) : Cut{}));
    return absl::OkStatus();
  }

  absl::StatusOr<DeviceVector> Part(const std::string& name, const Cut& cut) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values, Values({&name}));
    return Upload(CutValues(values, cut));
  }

  absl::StatusOr<MlaWeights> Mla(const LayerNames& names, const AttentionSpec& attention,
                                 Range heads_here) {
    MlaWeights mla;
    if (attention.mla.q_rank > 0) {
      HEDDLE_ASSIGN_OR_RETURN(mla.q_a, Linear({&names.q_a}, {}));
      HEDDLE_ASSIGN_OR_RETURN(mla.q_a_norm, Vector({&names.q_a_norm}));
    }
    const Cut queries = CutRows({Times(heads_here, attention.mla.q_dim())});
    HEDDLE_ASSIGN_OR_RETURN(mla.q, Linear({&names.q}, {}, queries));
    const int64_t kv_rank = attention.mla.kv_rank;
    const Cut rope_then_latent = CutRows({{kv_rank, attention.mla.rope_dim}, {0, kv_rank}});
    HEDDLE_ASSIGN_OR_RETURN(mla.kv_a, Linear({&names.kv_a}, {}, rope_then_latent));
    HEDDLE_ASSIGN_OR_RETURN(mla.kv_a_norm, Vector({&names.kv_a_norm}));
    std::vector<const CheckpointTensor*> tensors;
    for (const std::string* name : {&names.kv_b, &names.k_b, &names.v_b}) {
      if (name->empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(*name));
      tensors.push_back(tensor);
    }
    HEDDLE_RETURN_IF_ERROR(Prepare(tensors));
    HeadProjections heads(checkpoint_, attention);
    HEDDLE_RETURN_IF_ERROR(heads.Read(names));
    const auto first = static_cast<size_t>(heads_here.first);
    const auto count = static_cast<size_t>(heads_here.count);
    const auto own = [&](std::span<const WeightSource> all) {
      return device_.PackStack(all.subspan(first, count), static_cast<int32_t>(count));
    };
    HEDDLE_ASSIGN_OR_RETURN(mla.k_up, own(heads.keys()));
    HEDDLE_ASSIGN_OR_RETURN(mla.v_up, own(heads.values()));
    for (const CheckpointTensor* tensor : tensors) checkpoint_.DontNeed(*tensor);
    return mla;
  }

  // Loads a single row, which may be stored as a vector.
  absl::StatusOr<LinearWeights> RowGate(const std::string& name) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    const WeightSource source = SourceOf(*tensor);
    LinearWeights gate;
    HEDDLE_ASSIGN_OR_RETURN(gate.matrix, Pack({&source, 1}, {&tensor, 1}, {}, WeightRole::kExact));
    return gate;
  }

  absl::Status NormsApart(const LayerNames& names, MoeWeights* moe) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> router, Values({&names.router_norm}));
    const float factor = 1.0f / std::sqrt(static_cast<float>(router.size()));
    for (float& weight : router) weight *= factor;
    HEDDLE_ASSIGN_OR_RETURN(moe->router_norm, Upload(router));
    HEDDLE_ASSIGN_OR_RETURN(moe->norm, Vector({&names.expert_norm}));
    HEDDLE_ASSIGN_OR_RETURN(moe->post_norm, Vector({&names.expert_post_norm}));
    HEDDLE_ASSIGN_OR_RETURN(moe->mlp_norm, Vector({&names.mlp_own_norm}));
    return absl::OkStatus();
  }

  absl::Status LayerInput(const LayerNames& names, LayerWeights* layer) {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> scale, Values({&names.stream_scale}));
    if (!scale.empty()) layer->stream_scale = scale.front();
    if (names.input_gate.empty()) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(layer->input_gate, Linear({&names.input_gate}, {}));
    HEDDLE_ASSIGN_OR_RETURN(layer->input_out, Linear({&names.input_out}, {}));
    HEDDLE_ASSIGN_OR_RETURN(layer->input_post_norm, Vector({&names.input_post_norm}));
    return absl::OkStatus();
  }

  // The rows of all these tensors, whatever their dimensions before the last.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Stacked(
      const std::vector<std::string>& names, const Cut& cut) {
    std::vector<WeightSource> sources;
    std::vector<const CheckpointTensor*> tensors;
    for (const std::string& name : names) {
      HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
      tensors.push_back(tensor);
      sources.push_back(SourceOf(*tensor));
    }
    return Pack(sources, tensors, cut);
  }

  absl::Status Streams(const LayerNames& names, LayerWeights* layer) {
    if (!names.altup_router.empty()) {
      AltUpWeights& altup = layer->altup;
      HEDDLE_ASSIGN_OR_RETURN(std::vector<float> norm, Values({&names.altup_router_norm}));
      for (float& weight : norm) weight /= static_cast<float>(norm.size());
      HEDDLE_ASSIGN_OR_RETURN(altup.router_norm, Upload(norm));
      const auto exact = [this](const std::string& name) {
        return Linear({&name}, {}, {}, WeightRole::kExact);
      };
      HEDDLE_ASSIGN_OR_RETURN(altup.router, exact(names.altup_router));
      HEDDLE_ASSIGN_OR_RETURN(altup.predict, exact(names.altup_predict));
      HEDDLE_ASSIGN_OR_RETURN(altup.correct, exact(names.altup_correct));
      HEDDLE_ASSIGN_OR_RETURN(altup.scale, Vector({&names.altup_scale}));
    }
    if (names.laurel_in.empty()) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(layer->laurel_in, Linear({&names.laurel_in}, {}));
    HEDDLE_ASSIGN_OR_RETURN(layer->laurel_out, Linear({&names.laurel_out}, {}));
    HEDDLE_ASSIGN_OR_RETURN(layer->laurel_norm, Vector({&names.laurel_norm}));
    return absl::OkStatus();
  }

  absl::StatusOr<MoeWeights> Experts(const LayerNames& names, const MoeSpec& spec, Range inner) {
    MoeWeights moe;
    HEDDLE_ASSIGN_OR_RETURN(moe.router,
                            Linear({&names.router}, {&names.router_bias}, {}, WeightRole::kExact));
    HEDDLE_ASSIGN_OR_RETURN(moe.choice_bias, Vector({&names.choice_bias}));
    HEDDLE_ASSIGN_OR_RETURN(moe.expert_scale, Vector({&names.expert_scale}));
    if (spec.apart) HEDDLE_RETURN_IF_ERROR(NormsApart(names, &moe));
    const ExpertLayer up = {names.expert_gate_up,
                            {&names.expert_gate, &names.expert_up},
                            names.expert_gate_up_bias,
                            {&names.expert_gate_bias, &names.expert_up_bias}};
    HEDDLE_RETURN_IF_ERROR(Stack(up, spec.n_experts, CutRows({inner}), &moe.up, &moe.up_bias));
    // One rank adds the bias of the layer whose results are summed over ranks: the first with a
    // share.
    const std::string none;
    const std::string& bias = inner.first == 0 ? names.expert_down_bias : none;
    const ExpertLayer down = {"", {&names.expert_down}, "", {&bias}};
    HEDDLE_RETURN_IF_ERROR(
        Stack(down, spec.n_experts, CutColumns(inner), &moe.down, &moe.down_bias));
    return moe;
  }

  // One of the experts' two layers; see ExpertSources.
  struct ExpertLayer {
    const std::string& fused;
    Names names;
    const std::string& fused_bias;
    Names bias_names;
  };
  // Keeps `cut` of each of its matrices, which have the same shape.
  absl::Status Stack(const ExpertLayer& layer, int32_t n_experts, const Cut& cut,
                     std::unique_ptr<kernels::PackedStack>* matrices, DeviceVector* biases) {
    ExpertSources experts(checkpoint_, expert_layout_, n_experts);
    HEDDLE_RETURN_IF_ERROR(experts.Add(layer.fused, layer.names));
    HEDDLE_RETURN_IF_ERROR(Prepare(experts.tensors()));
    Cut of_stack = cut;
    if (cut.rows.has_value()) of_stack.rows->clear();
    int64_t begin = 0;
    for (const WeightSource& matrix : experts.sources()) {
      if (cut.rows.has_value()) {
        const Range own = cut.rows->front();
        of_stack.rows->push_back({begin + own.first, own.count});
      }
      begin += matrix.rows;
    }
    const CutSources parts(experts.sources(), of_stack);
    const KeptSources kept(policy_, WeightRole::kMatrix, parts.sources());
    HEDDLE_ASSIGN_OR_RETURN(*matrices, device_.PackStack(kept.sources(), n_experts));
    for (const CheckpointTensor* tensor : experts.tensors()) checkpoint_.DontNeed(*tensor);
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values,
                            experts.Biases(layer.fused_bias, layer.bias_names));
    HEDDLE_ASSIGN_OR_RETURN(*biases, Upload(CutValues(values, of_stack)));
    return absl::OkStatus();
  }

  // A fused gate_up is given to the device as two sources, like separate gate and up.
  absl::StatusOr<LinearWeights> Up(const LayerNames& names, const MlpSpec& mlp, Range inner) {
    Cut cut = CutRows({inner});
    if (mlp.gated) cut.rows->push_back({mlp.inter + inner.first, inner.count});
    if (mlp.gated && up_first_) std::swap(cut.rows->front(), cut.rows->back());
    return Linear({&names.gate_up, &names.gate, &names.up}, {&names.gate_bias, &names.up_bias},
                  cut);
  }

  absl::StatusOr<LinearWeights> Qkv(const LayerNames& names, const AttentionSpec& attention,
                                    const HeadShare& share) {
    const Cut cut = QkvRows(attention, share);
    if (qkv_by_kv_head_) return QkvByKvHead(names, attention, cut);
    return Linear({&names.qkv, &names.q, &names.k, &names.v},
                  {&names.qkv_bias, &names.q_bias, &names.k_bias, &names.v_bias}, cut);
  }

  // Loads rows and biases ordered by KV head, and reorders them for the forward.
  absl::StatusOr<LinearWeights> QkvByKvHead(const LayerNames& names, const AttentionSpec& attention,
                                            const Cut& cut) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(names.qkv));
    WeightSource source = Source(*tensor);
    std::vector<uint8_t> buffer;
    const std::span<const uint8_t> stored(kernels::SourceRows(source, 0, source.rows, &buffer),
                                          static_cast<size_t>(tensor->bytes()));
    const std::vector<std::byte> rows = AllQThenKThenV(
        std::as_bytes(stored), kernels::RowBytes(source.dtype, source.cols) * attention.head_dim,
        attention);
    source.data = rows.data();
    LinearWeights qkv;
    HEDDLE_ASSIGN_OR_RETURN(qkv.matrix, Pack({&source, 1}, {&tensor, 1}, cut));
    if (names.qkv_bias.empty()) return qkv;
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> bias, Values({&names.qkv_bias}));
    const std::vector<std::byte> sorted = AllQThenKThenV(
        std::as_bytes(std::span(bias)), int64_t{sizeof(float)} * attention.head_dim, attention);
    std::memcpy(bias.data(), sorted.data(), sorted.size());
    HEDDLE_ASSIGN_OR_RETURN(qkv.bias, Upload(CutValues(bias, cut)));
    return qkv;
  }

  absl::StatusOr<const CheckpointTensor*> Find(const std::string& name) const {
    return FindTensor(checkpoint_, name);
  }

  // The tensor, of which `data` holds rows of its type.
  absl::StatusOr<const CheckpointTensor*> FindPlain(const std::string& name) const {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    if (tensor->quantized != nullptr) return UnsupportedType(checkpoint_, *tensor);
    return tensor;
  }

  static WeightSource Source(const CheckpointTensor& tensor) {
    HEDDLE_CHECK(tensor.shape.size() == 2, "a matrix was not validated");
    return SourceOf(tensor);
  }

  // Transposes a source from [in, out] to [out, in]; returns the bytes that it then points to.
  static std::vector<std::byte> Transpose(WeightSource* source) {
    const kernels::DTypeInfo& info = kernels::Info(source->dtype);
    HEDDLE_CHECK(info.block_elements == 1, "block formats are never stored transposed");
    const int64_t size = info.block_bytes;
    const auto* from = static_cast<const std::byte*>(source->data);
    std::vector<std::byte> bytes(source->rows * source->cols * size);
    for (int64_t r = 0; r < source->rows; ++r) {
      for (int64_t c = 0; c < source->cols; ++c) {
        std::memcpy(&bytes[(c * source->rows + r) * size], from + (r * source->cols + c) * size,
                    size);
      }
    }
    std::swap(source->rows, source->cols);
    source->data = bytes.data();
    return bytes;
  }

  // Packs what the cut keeps; nullptr: nothing.
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Pack(
      std::span<const WeightSource> sources, std::span<const CheckpointTensor* const> tensors,
      const Cut& cut, WeightRole role = WeightRole::kMatrix) {
    const CutSources parts(sources, cut);
    if (parts.sources().empty()) return nullptr;
    HEDDLE_RETURN_IF_ERROR(Prepare(tensors));
    const KeptSources kept(policy_, role, parts.sources());
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::PackedWeight> packed,
                            device_.Pack(kept.sources()));
    for (const CheckpointTensor* tensor : tensors) checkpoint_.DontNeed(*tensor);
    return packed;
  }

  absl::Status Prepare(std::span<const CheckpointTensor* const> tensors) const {
    for (const CheckpointTensor* tensor : tensors) {
      checkpoint_.WillNeed(*tensor);
      // One check of all codes is enough for all ranks.
      if (tensor->quantized == nullptr || share_.rank > 0) continue;
      HEDDLE_RETURN_IF_ERROR(tensor->quantized->CheckCodes());
    }
    return absl::OkStatus();
  }

  kernels::Device& device_;
  const Checkpoint& checkpoint_;
  const WeightPolicy policy_;
  const Share& share_;
  const bool transposed_;
  const bool qkv_by_kv_head_;
  const bool up_first_;
  const ExpertLayout expert_layout_;
};

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model,
                                         const WeightPolicy& policy) {
  return LoadWeights(device, checkpoint, model, policy, WholeShare(model.spec));
}

absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model, const WeightPolicy& policy,
                                         const Share& share) {
  const NameMap& names = model.names;
  Loader loader(device, checkpoint, names, policy, share);
  ModelWeights weights;
  const bool has_ends = share.stage == 0;
  if (has_ends && !names.embed.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.embedding, loader.VocabTable(names.embed));
  }
  if (has_ends && !names.positions.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.positions, loader.Table(names.positions));
  }
  if (has_ends && !names.token_types.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.token_types, loader.Table(names.token_types));
  }
  if (has_ends && !names.layer_inputs.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.layer_inputs, loader.Table(names.layer_inputs));
    HEDDLE_ASSIGN_OR_RETURN(LinearWeights in, loader.Linear({&names.layer_inputs_in}, {}));
    weights.layer_inputs_in = std::move(in.matrix);
    HEDDLE_ASSIGN_OR_RETURN(weights.layer_inputs_norm, loader.Vector({&names.layer_inputs_norm}));
  }
  if (has_ends) {
    HEDDLE_RETURN_IF_ERROR(loader.StreamEnds(names, model.spec, &weights));
    HEDDLE_ASSIGN_OR_RETURN(weights.embedding_norm,
                            loader.Norm(names.embed_norm, names.embed_norm_bias));
  }
  weights.layers.resize(model.spec.layers.size());
  for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) {
    if (!share.has_layer(layer)) continue;
    const LayerSpec& spec = model.spec.layers[layer];
    HEDDLE_ASSIGN_OR_RETURN(
        weights.layers[static_cast<size_t>(layer)],
        loader.Layer(names.Layer(layer, spec), spec, share.layers[static_cast<size_t>(layer)]));
  }
  if (!has_ends) return weights;
  HEDDLE_ASSIGN_OR_RETURN(weights.final_norm, loader.Norm(names.final_norm, names.final_norm_bias));
  if (!names.lm_head.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.separate_head, loader.VocabTable(names.lm_head));
  }
  return weights;
}

absl::StatusOr<ModelWeights> LoadVocabulary(kernels::Device& device, const Checkpoint& checkpoint,
                                            const ModelDescription& model,
                                            const WeightPolicy& policy,
                                            std::span<const std::string> tensors) {
  const Share whole = WholeShare(model.spec);
  Loader loader(device, checkpoint, model.names, policy, whole);
  ModelWeights weights;
  for (const std::string& name : tensors) {
    const bool is_embedding = name == model.names.embed;
    HEDDLE_ASSIGN_OR_RETURN((is_embedding ? weights.embedding : weights.separate_head),
                            loader.VocabTable(name));
  }
  return weights;
}

}  // namespace heddle::engine
