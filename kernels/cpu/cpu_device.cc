#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/copy_page.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/level_tables.h"
#include "kernels/cpu/linear/cpu_weight.h"
#include "kernels/cpu/linear/experts.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/rank_ops.h"
#include "kernels/cpu/recurrence.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/short_conv.h"
#include "kernels/cpu/streams.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/device.h"
#include "kernels/host_memory.h"
#include "kernels/kv_element.h"
#include "kernels/owned_batch.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels {
namespace {

using cpu::Isa;

constexpr int32_t kMaxThreads = 1024;

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerNormElement = 0.25;
constexpr double kNsPerRotatedElement = 0.5;
constexpr double kNsPerAngle = 30;
constexpr double kNsPerGatheredElement = 2;  // one cache line each

const cpu::CpuWeight& AsCpu(const PackedWeight& weight) {
  return static_cast<const cpu::CpuWeight&>(weight);
}

class CpuOps final : public Ops {
 public:
  CpuOps(const cpu::KernelTable& table, cpu::ThreadPool& pool) : table_(table), pool_(pool) {}

  absl::Status Plan(const HostBatch& batch) {
    HEDDLE_RETURN_IF_ERROR(batch_.Assign(batch));
    adapter_groups_.Assign(batch.adapter_slot, cpu::kAdapterSegmentRows);
    return absl::OkStatus();
  }

  void Embed(const PackedWeight& table, float scale, Tensor out) override {
    const cpu::CpuWeight& weight = AsCpu(table);
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(weight.cols),
            [&](int64_t t, int32_t) {
              float* row = out.row<float>(t);
              const int64_t token = batch().token_ids[t];
              weight.UnpackRow(token < weight.rows ? token : 0, row);
              if (scale != 1.0f) table_.rows->scale(row, weight.cols, scale, 0.0f);
            });
  }

  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override {
    const cpu::CpuWeight& weight = AsCpu(table);
    auto* rows = static_cast<float*>(position_rows_.Get(pool_.num_threads() * weight.cols * 4));
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(weight.cols),
            [&](int64_t t, int32_t thread) {
              float* row = rows + thread * weight.cols;
              weight.UnpackRow(static_cast<int64_t>(batch().positions[t]) + offset, row);
              for (int64_t i = 0; i < weight.cols; ++i) x.row<float>(t)[i] += row[i];
            });
  }

  void AddTokenTypes(const PackedWeight& table, Tensor x) override {
    const cpu::CpuWeight& weight = AsCpu(table);
    const std::span<const int32_t> types = batch().token_types;
    auto* rows = static_cast<float*>(position_rows_.Get(2 * weight.cols * 4));
    const int64_t n_types = types.empty() ? 1 : std::min<int64_t>(2, weight.rows);
    for (int64_t type = 0; type < n_types; ++type) {
      weight.UnpackRow(type, rows + type * weight.cols);
    }
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(weight.cols),
            [&](int64_t t, int32_t) {
              const int64_t type = types.empty() ? 0 : types[static_cast<size_t>(t)];
              const float* row = rows + (type < n_types ? type : 0) * weight.cols;
              for (int64_t i = 0; i < weight.cols; ++i) x.row<float>(t)[i] += row[i];
            });
  }

  void AddSegments(const SegmentArgs& args) override {
    const std::span<const int32_t> segments = batch().segments;
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(args.x.cols),
            [&](int64_t t, int32_t) {
              const int64_t segment = segments.empty() ? 0 : segments[static_cast<size_t>(t)];
              HEDDLE_CHECK(segment < args.n_segments, "a segment outside the table");
              const float* added = args.table + segment * args.width;
              float* row = args.x.row<float>(t);
              for (int64_t head = 0; head < args.x.cols; head += args.width) {
                for (int64_t i = 0; i < args.width; ++i) row[head + i] += added[i];
              }
            });
  }

  void AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) override {
    if (adapter_groups_.segments.empty()) return;
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(x.cols),
            [&](int64_t t, int32_t) {
              const int32_t slot = SlotOf({}, t);
              const int64_t token =
                  batch().token_ids[static_cast<size_t>(t)] - adapters.first_token;
              if (slot < 0 || token < 0 || token >= adapters.num_tokens) return;
              cpu::AdaptEmbeddingRow(adapters, slot, token, *table_.rows, x, t);
            });
  }

  void Norm(const NormArgs& args) override {
    float* own = NormVectors(args);
    EachRow(args.x.rows, kNsPerNormElement * static_cast<double>(args.x.cols),
            [&](int64_t t, int32_t thread) { NormRow(args, t, thread, own); });
  }

  void Linear(const LinearArgs& args) override {
    if (args.norm.has_value()) Norm(*args.norm);
    if (args.adapters == nullptr || adapter_groups_.segments.empty()) {
      return cpu::Linear(args, *table_.linear, pool_, linear_);
    }
    if (!args.adapter_rows.of_logits) return LinearWithAdapters(args, adapter_groups_);
    row_slots_.clear();
    for (int64_t t = 0; t < args.x.rows; ++t) row_slots_.push_back(SlotOf(args.adapter_rows, t));
    LinearOfSlots(args, row_slots_);
  }

  void RopeAngles(const RopeAnglesArgs& args) override {
    auto half = static_cast<int64_t>(args.inv_freq.size());
    EachRow(batch().n_tokens(), kNsPerAngle * static_cast<double>(half), [&](int64_t t, int32_t) {
      float* row = args.cos_sin + t * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        double angle = static_cast<double>(batch().positions[t]) * args.inv_freq[i];
        row[i] = static_cast<float>(std::cos(angle) * args.scale);
        row[half + i] = static_cast<float>(std::sin(angle) * args.scale);
      }
    });
  }

  void RopeKvWrite(const RopeKvWriteArgs& args) override {
    const HostBatch own = batch().OfGroup(args.cache.group);
    double elements = static_cast<double>(args.q.cols + 2 * args.k.cols);
    float* const vectors = HeadNormVectors(args);
    EachRow(own.n_tokens(), kNsPerRotatedElement * elements, [&](int64_t t, int32_t thread) {
      float* const weights = vectors + int64_t{thread} * args.cache.head_dim;
      Rotate(args, {args.q_norm, args.q_norm_adapters, weights}, t, args.n_heads,
             args.q.row<float>(t));
      if (args.k.data == nullptr) return;
      Rotate(args, {args.k_norm, args.k_norm_adapters, weights}, t, args.cache.n_kv_heads,
             args.k.row<float>(t));
      WriteKv(args, t, own.kv_slot[static_cast<size_t>(t)]);
    });
  }

  void Attention(const AttentionArgs& args) override {
    cpu::Attention(batch().OfGroup(args.cache.group), args, *table_.attention, pool_, attention_);
  }

  void ShortConv(const ShortConvArgs& args) override {
    cpu::ShortConv(batch().OfGroup(args.cache.group), args, *table_.rows, pool_, conv_inputs_);
  }

  void Recurrence(const RecurrenceArgs& args) override {
    cpu::Recurrence(batch().OfGroup(args.cache.group), args, *table_.recurrence, pool_,
                    recurrence_);
  }

  void GateElements(Tensor gate, Tensor x) override {
    EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
      table_.recurrence->gate_elements(gate.row<float>(t), x.cols, x.row<float>(t));
    });
  }

  void Sharpen(const SharpenArgs& args) override {
    EachRow(args.x.rows, kNsPerNormElement * static_cast<double>(args.x.cols),
            [&](int64_t t, int32_t) {
              const auto position = static_cast<int64_t>(batch().positions[static_cast<size_t>(t)]);
              const int64_t times = (position + args.offset) / args.length;
              const auto factor =
                  static_cast<float>(1.0 + args.factor * std::log1p(static_cast<double>(times)));
              if (factor != 1.0f) {
                table_.rows->scale(args.x.row<float>(t), args.x.cols, factor, 0.0f);
              }
            });
  }

  void Multiply(Tensor factor, Tensor x) override {
    EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
      const float* const by = factor.row<float>(t);
      float* const row = x.row<float>(t);
      for (int64_t i = 0; i < x.cols; ++i) row[i] *= by[i];
    });
  }

  void Scale(Tensor x, float factor) override {
    EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols),
            [&](int64_t t, int32_t) { table_.rows->scale(x.row<float>(t), x.cols, factor, 0.0f); });
  }

  void PredictStreams(const StreamsArgs& args) override {
    HEDDLE_CHECK(args.count <= kMaxStreams, "too many streams");
    EachRow(args.streams.rows, kNsPerNormElement * static_cast<double>(args.streams.cols),
            [&](int64_t t, int32_t) { cpu::PredictStreamsRow(args, t); });
  }

  void CorrectStreams(const StreamsArgs& args) override {
    EachRow(args.streams.rows, kNsPerNormElement * static_cast<double>(args.streams.cols),
            [&](int64_t t, int32_t) { cpu::CorrectStreamsRow(args, t); });
  }

  void MatchMagnitude(Tensor like, Tensor x) override {
    EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
      cpu::MatchMagnitudeRow(like.row<float>(t), x.row<float>(t), x.cols);
    });
  }

  void SparseGate(const SparseGateArgs& args) override {
    EachRow(args.gate_up.rows, kNsPerNormElement * static_cast<double>(args.gate_up.cols),
            [&](int64_t t, int32_t) { cpu::SparseGateRow(args, t); });
  }

  void Route(const RouteArgs& args) override { cpu::Route(args, pool_); }

  void ExpertMix(const ExpertMixArgs& args) override {
    cpu::ExpertMix(
        args, batch().adapter_slot,
        [this](const LinearArgs& linear, std::span<const int32_t> slots) {
          LinearOfSlots(linear, slots);
        },
        pool_, experts_);
  }

  void HeadLinear(const HeadLinearArgs& args) override {
    cpu::HeadLinear(
        args, batch().adapter_slot,
        [this](const LinearArgs& linear, std::span<const int32_t>) { Linear(linear); }, pool_);
  }

  void GateRows(Tensor gate_f32, Tensor x) override {
    EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
      const float factor = 1.0f / (1.0f + std::exp(-*gate_f32.row<float>(t)));
      table_.rows->scale(x.row<float>(t), x.cols, factor, 0.0f);
    });
  }

  void GatherLogitRows(Tensor x, Tensor out) override {
    for (size_t i = 0; i < batch().logit_rows.size(); ++i) {
      const float* from = x.row<float>(batch().logit_rows[i]);
      std::copy(from, from + x.cols, out.row<float>(static_cast<int64_t>(i)));
    }
  }

  void CopyRows(Tensor x, Tensor out) override {
    EachRow(x.rows, kNsPerGatheredElement * static_cast<double>(x.cols),
            [&](int64_t t, int32_t) { std::copy_n(x.row<float>(t), x.cols, out.row<float>(t)); });
  }

  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override {
    EachRow(logits_f32.rows, static_cast<double>(logits_f32.cols), [&](int64_t t, int32_t) {
      table_.rows->scale(logits_f32.row<float>(t), logits_f32.cols, scale, softcap);
    });
  }

  void Sample(const SampleArgs& args) override {
    cpu::Sample(args, *table_.rows, pool_, samplers_);
  }

  void JoinGroup(std::shared_ptr<Communicator> communicator) {
    ranks_.emplace(std::move(communicator), *table_.rows, pool_);
  }

  void JoinStages(std::shared_ptr<Communicator> stages) { stages_ = std::move(stages); }

  // Whoever aborts the stages' group reports it; a step that is given up has no result.
  void SendRows(Tensor rows, int32_t to) override {
    HEDDLE_CHECK(stages_ != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
    static_cast<void>(stages_->Post(rows.data, rows.rows * RowBytes(DType::kF32, rows.cols), to));
  }
  void RecvRows(Tensor rows, int32_t from) override {
    HEDDLE_CHECK(stages_ != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
    static_cast<void>(stages_->Recv(rows.data, rows.rows * RowBytes(DType::kF32, rows.cols), from));
  }

  void EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) override {
    EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(out.cols),
            [&](int64_t t, int32_t) {
              float* row = out.row<float>(t);
              const int64_t own = batch().token_ids[static_cast<size_t>(t)] - first_row;
              if (own < 0 || own >= table.rows) {
                std::fill_n(row, out.cols, 0.0f);
                return;
              }
              AsCpu(table).UnpackRow(own, row);
              if (scale != 1.0f) table_.rows->scale(row, out.cols, scale, 0.0f);
            });
  }

  void AllReduce(const AllReduceArgs& args) override {
    HEDDLE_CHECK(ranks_.has_value(), "this device is in no group of ranks");
    float* own = args.norm.has_value() ? NormVectors(*args.norm) : nullptr;
    ranks_->AllReduce(args, [&](int64_t t, int32_t thread) {
      if (args.norm.has_value()) NormRow(*args.norm, t, thread, own);
    });
  }

  void GatherColumns(const GatherColumnsArgs& args) override {
    HEDDLE_CHECK(ranks_.has_value(), "this device is in no group of ranks");
    ranks_->GatherColumns(args);
  }

 private:
  const HostBatch& batch() const { return batch_.view(); }

  template <typename F>
  void EachRow(int64_t n, double row_cost, const F& body) {
    pool_.ForRange(n, row_cost, [&](int64_t begin, int64_t end, int32_t thread) {
      for (int64_t t = begin; t < end; ++t) body(t, thread);
    });
  }

  // The adapter of a row; -1: none.
  int32_t SlotOf(const AdapterRows& rows, int64_t t) const {
    if (batch().adapter_slot.empty()) return -1;
    const int64_t row = rows.first + t;
    const int64_t of_batch = rows.of_logits ? batch().logit_rows[static_cast<size_t>(row)] : row;
    return batch().adapter_slot[static_cast<size_t>(of_batch)];
  }

  bool IsAdapted(const NormArgs& args) const {
    return args.adapters != nullptr && !adapter_groups_.segments.empty();
  }

  // Per thread, room for the weights and biases of a row with an adapter.
  float* NormVectors(const NormArgs& args) {
    const int64_t floats = IsAdapted(args) ? pool_.num_threads() * 2 * args.x.cols : 0;
    return static_cast<float*>(norm_vectors_.Get(floats * int64_t{sizeof(float)}));
  }

  void NormRow(const NormArgs& args, int64_t t, int32_t thread, float* vectors) const {
    cpu::NormRowArgs row{};
    row.x = args.x.row<float>(t);
    row.residual = args.residual.data ? args.residual.row<float>(t) : nullptr;
    row.weight = args.weight;
    row.bias = args.bias;
    row.eps = args.eps;
    row.weight_offset = args.weight_offset;
    row.layer = args.kind == NormKind::kLayer;
    row.dim = args.x.cols;
    row.out = args.out.row<float>(t);
    if (IsAdapted(args)) AdaptNorm(args, t, vectors + thread * 2 * args.x.cols, &row);
    table_.rows->norm(row);
  }

  // Points `row` to weights and biases in `own` [2, dim] if the row's adapter changes them.
  void AdaptNorm(const NormArgs& args, int64_t t, float* own, cpu::NormRowArgs* row) const {
    const int32_t slot = SlotOf(args.adapter_rows, t);
    if (slot < 0) return;
    const AdapterFactors& added =
        args.adapters->factors[int64_t{slot} * args.adapters->slot_stride];
    const int64_t dim = args.x.cols;
    if (added.gain != nullptr) {
      cpu::AddGains(added, args.weight, args.weight_offset, dim, own);
      row->weight = own;
      row->weight_offset = 0;
    }
    if (added.bias == nullptr) return;
    cpu::AddBiases(added, args.bias, dim, own + dim);
    row->bias = own + dim;
  }

  void LinearWithAdapters(const LinearArgs& args, const AdapterGroups& groups) {
    const cpu::AdapterCall adapters(*args.adapters, groups, *table_.rows, args.x, pool_, adapters_);
    cpu::Linear(args, *table_.linear, pool_, linear_, adapters.empty() ? nullptr : &adapters);
  }

  // The product of rows with these adapters, which need not be rows of the batch.
  void LinearOfSlots(const LinearArgs& args, std::span<const int32_t> slots) {
    if (slots.empty() || args.adapters == nullptr) {
      return cpu::Linear(args, *table_.linear, pool_, linear_);
    }
    other_groups_.Assign(slots, cpu::kAdapterSegmentRows);
    if (other_groups_.segments.empty()) return cpu::Linear(args, *table_.linear, pool_, linear_);
    LinearWithAdapters(args, other_groups_);
  }

  // Per thread, room for the weights of the heads' norms of a row with an adapter.
  float* HeadNormVectors(const RopeKvWriteArgs& args) {
    const bool is_adapted = args.q_norm_adapters != nullptr || args.k_norm_adapters != nullptr;
    const int64_t floats = is_adapted ? int64_t{pool_.num_threads()} * args.cache.head_dim : 0;
    return static_cast<float*>(norm_vectors_.Get(floats * int64_t{sizeof(float)}));
  }

  struct HeadNorm {
    const float* weight;  // nullptr: none
    const AdapterMatrix* adapters;
    float* own;  // [head_dim] room for a row's weights
  };
  void Rotate(const RopeKvWriteArgs& args, const HeadNorm& norm, int64_t t, int32_t heads,
              float* row) const {
    cpu::RotateArgs rotate{};
    rotate.heads = row;
    rotate.n_heads = heads;
    rotate.head_dim = args.cache.head_dim;
    rotate.norm = norm.weight;
    rotate.norm_eps = args.norm_eps;
    rotate.norm_weight_offset = args.norm_weight_offset;
    if (const int32_t slot = norm.adapters == nullptr ? -1 : SlotOf({}, t); slot >= 0) {
      const AdapterFactors& added =
          norm.adapters->factors[int64_t{slot} * norm.adapters->slot_stride];
      if (added.gain != nullptr) {
        cpu::AddGains(added, norm.weight, args.norm_weight_offset, args.cache.head_dim, norm.own);
        rotate.norm = norm.own;
        rotate.norm_weight_offset = 0;
      }
    }
    rotate.cos_sin = args.cos_sin ? args.cos_sin + t * args.rotary_dim : nullptr;
    rotate.rotary_dim = args.rotary_dim;
    rotate.interleaved = args.layout == RopeLayout::kInterleaved;
    if (args.norms_last) {
      cpu::RotateArgs rotation = rotate;
      rotation.norm = nullptr;
      table_.rows->rotate(rotation);
      rotate.cos_sin = nullptr;
    }
    table_.rows->rotate(rotate);
  }

  void WriteKv(const RopeKvWriteArgs& args, int64_t t, int64_t slot) const {
    const KvCacheView& cache = args.cache;
    const cpu::KvType type = cpu::KvTypeOf(cache.dtype);
    auto* keys = static_cast<char*>(cache.keys);
    auto* values = static_cast<char*>(cache.values);
    for (int32_t h = 0; h < cache.n_kv_heads; ++h) {
      const int64_t to = RowOffset(cache, slot, h);
      const int64_t scale = ScaleOffset(cache, slot, h);
      int64_t from = static_cast<int64_t>(h) * cache.head_dim;
      table_.rows->to_kv(type, args.k.row<float>(t) + from, cache.head_dim, keys + to,
                         keys + scale);
      if (args.v.data == nullptr) continue;
      table_.rows->to_kv(type, args.v.row<float>(t) + from, cache.head_dim, values + to,
                         values + scale);
    }
  }

  const cpu::KernelTable table_;
  cpu::ThreadPool& pool_;
  OwnedBatch batch_;
  AdapterGroups adapter_groups_;
  AdapterGroups other_groups_;      // of rows that are not those of the batch
  std::vector<int32_t> row_slots_;  // of logit rows
  cpu::LinearScratch linear_;
  cpu::AdapterScratch adapters_;
  cpu::Scratch position_rows_;
  cpu::Scratch recurrence_;
  cpu::Scratch norm_vectors_;
  cpu::Scratch conv_inputs_;
  cpu::AttentionScratch attention_;
  cpu::ExpertScratch experts_;
  std::vector<cpu::SamplerScratch> samplers_;
  std::optional<cpu::RankOps> ranks_;     // of a device in a group
  std::shared_ptr<Communicator> stages_;  // of one in a pipeline
};

// Mentions threads beyond the number of CPUs: they take turns, and each op waits for the last.
std::string ThreadsText(int32_t num_threads) {
  const int32_t cpus = cpu::FindUsableCpus().num_cpus;
  std::string text = absl::StrCat(num_threads, num_threads == 1 ? " thread" : " threads");
  if (num_threads > cpus) {
    absl::StrAppend(&text, ", WARNING: more than the ", cpus, cpus == 1 ? " CPU" : " CPUs",
                    " that this process may use");
  }
  return text;
}

class CpuDevice final : public Device {
 public:
  CpuDevice(Isa isa, const cpu::CpuFeatures& features, int32_t num_threads, bool pin)
      : description_(absl::StrCat("cpu (", cpu::Name(isa), " of ", cpu::Describe(features), "; ",
                                  ThreadsText(num_threads), ")")),
        isa_(isa),
        table_(cpu::TableFor(isa)),
        pool_(num_threads, pin),
        ops_(table_, pool_) {}

  std::string description() const override { return description_; }
  DType activation_dtype() const override { return DType::kF32; }
  bool HasKvType(DType) const override { return true; }
  bool has_short_conv() const override { return true; }
  bool has_recurrence() const override { return true; }
  bool has_attention_in_chunks() const override { return true; }
  bool has_layer_inputs() const override { return true; }
  bool has_streams() const override { return true; }
  bool has_norms_behind_rotation() const override { return true; }
  bool has_attention_both_ways() const override { return true; }
  bool has_segments() const override { return true; }
  bool has_pieces() const override { return true; }
  DType preferred_kv_type() const override {
    return isa_ >= Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF16;
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return AllocateHost(bytes, "buffer");
  }

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) override {
    HEDDLE_ASSIGN_OR_RETURN(auto weight, cpu::CpuWeight::Pack(sources, *table_.linear, pool_));
    return std::unique_ptr<PackedWeight>(std::move(weight));
  }

  absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(std::span<const WeightSource> sources,
                                                         int32_t count) override {
    HEDDLE_ASSIGN_OR_RETURN(auto stack, cpu::CpuStack::Pack(sources, count, *table_.linear, pool_));
    return std::unique_ptr<PackedStack>(std::move(stack));
  }

  absl::Status JoinGroup(std::shared_ptr<Communicator> communicator) override {
    ops_.JoinGroup(std::move(communicator));
    return absl::OkStatus();
  }

  absl::Status JoinStages(std::shared_ptr<Communicator> stages) override {
    ops_.JoinStages(std::move(stages));
    return absl::OkStatus();
  }

  bool samples_by_rejection() const override { return true; }
  absl::Status Plan(const HostBatch& batch) override { return ops_.Plan(batch); }

  absl::Status Run(const std::function<void(Ops&)>& body) override {
    body(ops_);
    return absl::OkStatus();
  }

  void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) override {
    CopyHostPage(cache, from, to, num_tokens);
  }

 private:
  const std::string description_;
  const Isa isa_;
  const cpu::KernelTable table_;
  cpu::ThreadPool pool_;
  CpuOps ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  cpu::CpuFeatures features = cpu::DetectCpuFeatures();
  HEDDLE_ASSIGN_OR_RETURN(Isa isa, cpu::ResolveIsa(options.isa, features));
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cpu device: ", options.num_threads, " threads; valid are 0 (all cores) to ", kMaxThreads));
  }
  const int32_t threads =
      options.num_threads == 0 ? cpu::FindUsableCpus().num_cores : options.num_threads;
  return std::make_unique<CpuDevice>(isa, features, threads, options.pin_threads);
}

}  // namespace heddle::kernels
