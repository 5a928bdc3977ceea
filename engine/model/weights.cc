#include "engine/model/weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/expert_sources.h"
#include "engine/model/head_projections.h"
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
         const WeightPolicy& policy)
      : device_(device),
        checkpoint_(checkpoint),
        policy_(policy),
        transposed_(names.transposed_linears),
        qkv_by_kv_head_(names.qkv_by_kv_head),
        expert_layout_(names.expert_layout) {}

  // Loads a matrix that every family stores as [rows, cols] (embeddings, head).
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Table(const std::string& name) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    WeightSource source = Source(*tensor);
    const ReleasingReader reader(checkpoint_, *tensor);
    if (tensor->quantized == nullptr && tensor->bytes() >= kLargeBytes) source = reader.source();
    return Pack({&source, 1}, {&tensor, 1}, WeightRole::kTable);
  }

  // Loads the linear layer whose output features are those of all `names`, in order, with the
  // biases concatenated likewise; empty names are skipped.
  absl::StatusOr<LinearWeights> Linear(std::initializer_list<const std::string*> names,
                                       std::initializer_list<const std::string*> biases,
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
    HEDDLE_ASSIGN_OR_RETURN(linear.matrix, Pack(sources, tensors, role));
    HEDDLE_ASSIGN_OR_RETURN(linear.bias, Vector(biases));
    return linear;
  }

  // Concatenates vectors on the device; empty names are skipped, and the result is empty if all
  // are.
  absl::StatusOr<DeviceVector> Vector(std::initializer_list<const std::string*> names) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> values, Values(names));
    return Upload(values);
  }

  absl::StatusOr<std::vector<float>> Values(std::initializer_list<const std::string*> names) {
    std::vector<float> values;
    for (const std::string* name : names) {
      if (name->empty()) continue;
      HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(*name));
      const int64_t begin = static_cast<int64_t>(values.size());
      values.resize(begin + tensor->shape.back());
      kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), tensor->shape.back(),
                             values.data() + begin);
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

  absl::StatusOr<LayerWeights> Layer(const LayerNames& names, const LayerSpec& spec) {
    LayerWeights layer;
    HEDDLE_ASSIGN_OR_RETURN(layer.attention_norm, Norm(names.attn_norm, names.attn_norm_bias));
    HEDDLE_ASSIGN_OR_RETURN(layer.attention_post_norm, Norm(names.attn_post_norm, ""));
    if (spec.attention.mla.kv_rank > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.mla, Mla(names, spec.attention));
    } else if (spec.attention.n_heads > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.qkv, Qkv(names, spec.attention));
    }
    HEDDLE_ASSIGN_OR_RETURN(layer.q_norm, Vector({&names.q_norm}));
    HEDDLE_ASSIGN_OR_RETURN(layer.k_norm, Vector({&names.k_norm}));
    HEDDLE_ASSIGN_OR_RETURN(layer.sinks, Vector({&names.sinks}));
    if (!names.o.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(layer.out, Linear({&names.o}, {&names.o_bias}));
    }
    HEDDLE_ASSIGN_OR_RETURN(layer.mlp_norm, Norm(names.mlp_norm, names.mlp_norm_bias));
    HEDDLE_ASSIGN_OR_RETURN(layer.mlp_post_norm, Norm(names.mlp_post_norm, ""));
    if (spec.mlp.inter > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.up, Up(names));
      HEDDLE_ASSIGN_OR_RETURN(layer.down, Linear({&names.down}, {&names.down_bias}));
    }
    if (spec.mlp.row_gate) {
      HEDDLE_ASSIGN_OR_RETURN(layer.row_gate, RowGate(names.row_gate));
    }
    if (spec.moe.n_experts > 0) {
      HEDDLE_ASSIGN_OR_RETURN(layer.moe, Experts(names, spec.moe));
    }
    return layer;
  }

 private:
  absl::StatusOr<MlaWeights> Mla(const LayerNames& names, const AttentionSpec& attention) {
    MlaWeights mla;
    if (attention.mla.q_rank > 0) {
      HEDDLE_ASSIGN_OR_RETURN(mla.q_a, Linear({&names.q_a}, {}));
      HEDDLE_ASSIGN_OR_RETURN(mla.q_a_norm, Vector({&names.q_a_norm}));
    }
    HEDDLE_ASSIGN_OR_RETURN(mla.q, Linear({&names.q}, {}));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* kv_a, Find(names.kv_a));
    const int64_t kv_rank = attention.mla.kv_rank;
    const WeightSource all = Source(*kv_a);
    const WeightSource rope_then_latent[] = {Rows(all, kv_rank, attention.mla.rope_dim),
                                             Rows(all, 0, kv_rank)};
    HEDDLE_ASSIGN_OR_RETURN(mla.kv_a.matrix, Pack(rope_then_latent, {&kv_a, 1}));
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
    HEDDLE_ASSIGN_OR_RETURN(mla.k_up, device_.PackStack(heads.keys(), attention.n_heads));
    HEDDLE_ASSIGN_OR_RETURN(mla.v_up, device_.PackStack(heads.values(), attention.n_heads));
    for (const CheckpointTensor* tensor : tensors) checkpoint_.DontNeed(*tensor);
    return mla;
  }

  static WeightSource Rows(const WeightSource& source, int64_t first, int64_t count) {
    return kernels::PartOf(source, first, count);
  }

  // Loads a single row, which may be stored as a vector.
  absl::StatusOr<LinearWeights> RowGate(const std::string& name) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    const WeightSource source = SourceOf(*tensor);
    LinearWeights gate;
    HEDDLE_ASSIGN_OR_RETURN(gate.matrix, Pack({&source, 1}, {&tensor, 1}, WeightRole::kExact));
    return gate;
  }

  absl::StatusOr<MoeWeights> Experts(const LayerNames& names, const MoeSpec& spec) {
    MoeWeights moe;
    HEDDLE_ASSIGN_OR_RETURN(moe.router,
                            Linear({&names.router}, {&names.router_bias}, WeightRole::kExact));
    HEDDLE_ASSIGN_OR_RETURN(moe.choice_bias, Vector({&names.choice_bias}));
    HEDDLE_RETURN_IF_ERROR(Stack(
        names.expert_gate_up, {&names.expert_gate, &names.expert_up}, names.expert_gate_up_bias,
        {&names.expert_gate_bias, &names.expert_up_bias}, spec, &moe.up, &moe.up_bias));
    HEDDLE_RETURN_IF_ERROR(Stack("", {&names.expert_down}, "", {&names.expert_down_bias}, spec,
                                 &moe.down, &moe.down_bias));
    return moe;
  }

  // Loads one of the experts' two layers; see ExpertSources.
  using Names = std::initializer_list<const std::string*>;
  absl::Status Stack(const std::string& fused, Names names, const std::string& fused_bias,
                     Names bias_names, const MoeSpec& spec,
                     std::unique_ptr<kernels::PackedStack>* matrices, DeviceVector* biases) {
    ExpertSources experts(checkpoint_, expert_layout_, spec.n_experts);
    HEDDLE_RETURN_IF_ERROR(experts.Add(fused, names));
    HEDDLE_RETURN_IF_ERROR(Prepare(experts.tensors()));
    const KeptSources kept(policy_, WeightRole::kMatrix, experts.sources());
    HEDDLE_ASSIGN_OR_RETURN(*matrices, device_.PackStack(kept.sources(), spec.n_experts));
    for (const CheckpointTensor* tensor : experts.tensors()) checkpoint_.DontNeed(*tensor);
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values,
                            experts.Biases(fused_bias, bias_names));
    HEDDLE_ASSIGN_OR_RETURN(*biases, Upload(values));
    return absl::OkStatus();
  }

  static std::array<WeightSource, 2> Halves(const WeightSource& source) {
    const int64_t rows = source.rows / 2;
    return {kernels::PartOf(source, 0, rows), kernels::PartOf(source, rows, rows)};
  }

  // A fused gate_up is given to the device as two sources, like separate gate and up.
  absl::StatusOr<LinearWeights> Up(const LayerNames& names) {
    if (names.gate_up.empty()) {
      return Linear({&names.gate, &names.up}, {&names.gate_bias, &names.up_bias});
    }
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(names.gate_up));
    LinearWeights linear;
    HEDDLE_ASSIGN_OR_RETURN(linear.matrix, Pack(Halves(Source(*tensor)), {&tensor, 1}));
    HEDDLE_ASSIGN_OR_RETURN(linear.bias, Vector({&names.gate_bias, &names.up_bias}));
    return linear;
  }

  absl::StatusOr<LinearWeights> Qkv(const LayerNames& names, const AttentionSpec& attention) {
    if (qkv_by_kv_head_) return QkvByKvHead(names, attention);
    return Linear({&names.qkv, &names.q, &names.k, &names.v},
                  {&names.qkv_bias, &names.q_bias, &names.k_bias, &names.v_bias});
  }

  // Loads rows and biases ordered by KV head, and reorders them for the forward.
  absl::StatusOr<LinearWeights> QkvByKvHead(const LayerNames& names,
                                            const AttentionSpec& attention) {
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
    HEDDLE_ASSIGN_OR_RETURN(qkv.matrix, Pack({&source, 1}, {&tensor, 1}));
    if (names.qkv_bias.empty()) return qkv;
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> bias, Values({&names.qkv_bias}));
    const std::vector<std::byte> sorted = AllQThenKThenV(
        std::as_bytes(std::span(bias)), int64_t{sizeof(float)} * attention.head_dim, attention);
    std::memcpy(bias.data(), sorted.data(), sorted.size());
    HEDDLE_ASSIGN_OR_RETURN(qkv.bias, Upload(bias));
    return qkv;
  }

  // Reorders heads of `head_bytes` each: `from` has, per KV head, its query heads, its k, its v.
  static std::vector<std::byte> AllQThenKThenV(std::span<const std::byte> from, int64_t head_bytes,
                                               const AttentionSpec& attention) {
    const int64_t group = attention.n_heads / attention.n_kv_heads;
    const int64_t n_kv = attention.n_kv_heads;
    std::vector<std::byte> to(from.size());
    auto copy = [&](int64_t from_head, int64_t to_head, int64_t count) {
      std::memcpy(&to[to_head * head_bytes], &from[from_head * head_bytes], count * head_bytes);
    };
    for (int64_t g = 0; g < n_kv; ++g) {
      const int64_t first = g * (group + 2);
      copy(first, g * group, group);
      copy(first + group, group * n_kv + g, 1);
      copy(first + group + 1, (group + 1) * n_kv + g, 1);
    }
    return to;
  }

  absl::StatusOr<const CheckpointTensor*> Find(const std::string& name) const {
    return FindTensor(checkpoint_, name);
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

  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Pack(
      std::span<const WeightSource> sources, std::span<const CheckpointTensor* const> tensors,
      WeightRole role = WeightRole::kMatrix) {
    HEDDLE_RETURN_IF_ERROR(Prepare(tensors));
    const KeptSources kept(policy_, role, sources);
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::PackedWeight> packed,
                            device_.Pack(kept.sources()));
    for (const CheckpointTensor* tensor : tensors) checkpoint_.DontNeed(*tensor);
    return packed;
  }

  absl::Status Prepare(std::span<const CheckpointTensor* const> tensors) const {
    for (const CheckpointTensor* tensor : tensors) {
      checkpoint_.WillNeed(*tensor);
      if (tensor->quantized != nullptr) HEDDLE_RETURN_IF_ERROR(tensor->quantized->CheckCodes());
    }
    return absl::OkStatus();
  }

  kernels::Device& device_;
  const Checkpoint& checkpoint_;
  const WeightPolicy policy_;
  const bool transposed_;
  const bool qkv_by_kv_head_;
  const ExpertLayout expert_layout_;
};

}  // namespace

double WeightTraffic::StepBytes(double rows) const {
  auto total = static_cast<double>(bytes);
  for (const Experts& layer : experts) {
    const double passed_over = 1.0 - static_cast<double>(layer.top_k) / layer.count;
    total += static_cast<double>(layer.bytes) * (1.0 - std::pow(passed_over, rows));
  }
  return total;
}

WeightTraffic TrafficOf(const ModelSpec& spec, const ModelWeights& weights) {
  WeightTraffic traffic;
  auto add = [&](const LinearWeights& linear) {
    if (linear.matrix == nullptr) return;
    traffic.bytes += linear.matrix->bytes;
    traffic.macs_per_token += linear.matrix->rows * linear.matrix->cols;
  };
  auto add_heads = [&](const kernels::PackedStack* heads) {
    if (heads == nullptr) return;
    traffic.bytes += heads->bytes;
    traffic.macs_per_token += heads->count * heads->rows * heads->cols;
  };
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    for (const LinearWeights* linear :
         {&layer.qkv, &layer.out, &layer.up, &layer.down, &layer.row_gate, &layer.moe.router,
          &layer.mla.q_a, &layer.mla.q, &layer.mla.kv_a}) {
      add(*linear);
    }
    add_heads(layer.mla.k_up.get());
    add_heads(layer.mla.v_up.get());
    const MoeWeights& moe = layer.moe;
    if (moe.up == nullptr) continue;
    const int32_t top_k = spec.layers[i].moe.rule.top_k;
    traffic.macs_per_token +=
        top_k * (moe.up->rows * moe.up->cols + moe.down->rows * moe.down->cols);
    traffic.experts.push_back({moe.up->bytes + moe.down->bytes, moe.up->count, top_k});
  }
  traffic.bytes += weights.head().bytes;
  traffic.macs_per_logit_row = weights.head().rows * weights.head().cols;
  return traffic;
}

absl::StatusOr<ModelWeights> LoadWeights(kernels::Device& device, const Checkpoint& checkpoint,
                                         const ModelDescription& model,
                                         const WeightPolicy& policy) {
  const NameMap& names = model.names;
  Loader loader(device, checkpoint, names, policy);
  ModelWeights weights;
  if (!names.embed.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.embedding, loader.Table(names.embed));
  }
  if (!names.positions.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.positions, loader.Table(names.positions));
  }
  for (int32_t layer = 0; layer < model.spec.n_layers(); ++layer) {
    const LayerSpec& spec = model.spec.layers[layer];
    HEDDLE_ASSIGN_OR_RETURN(LayerWeights loaded, loader.Layer(names.Layer(layer, spec), spec));
    weights.layers.push_back(std::move(loaded));
  }
  HEDDLE_ASSIGN_OR_RETURN(weights.final_norm, loader.Norm(names.final_norm, names.final_norm_bias));
  if (!names.lm_head.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(weights.separate_head, loader.Table(names.lm_head));
  }
  return weights;
}

}  // namespace heddle::engine
