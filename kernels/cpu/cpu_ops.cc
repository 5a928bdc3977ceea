#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/linear/cpu_weight.h"
#include "kernels/cpu/op_costs.h"
#include "kernels/cpu/recurrence.h"
#include "kernels/cpu/short_conv.h"
#include "kernels/cpu/streams.h"

namespace heddle::kernels::cpu {
namespace {

const CpuWeight& AsCpu(const PackedWeight& weight) { return static_cast<const CpuWeight&>(weight); }

}  // namespace

absl::Status CpuOps::Plan(const HostBatch& batch) {
  narrow_ = nullptr;
  HEDDLE_RETURN_IF_ERROR(batch_.Assign(batch));
  adapter_groups_.Assign(batch.adapter_slot, kAdapterSegmentRows);
  return absl::OkStatus();
}

void CpuOps::Embed(const PackedWeight& table, float scale, Tensor out) {
  const CpuWeight& weight = AsCpu(table);
  EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(weight.cols),
          [&](int64_t t, int32_t) {
            float* row = out.row<float>(t);
            const int64_t token = batch().token_ids[t];
            weight.UnpackRow(token < weight.rows ? token : 0, row);
            if (scale != 1.0f) table_.rows->scale(row, weight.cols, scale, 0.0f);
          });
}

void CpuOps::AddPositions(const PackedWeight& table, int32_t offset, Tensor x) {
  const CpuWeight& weight = AsCpu(table);
  auto* rows = static_cast<float*>(position_rows_.Get(pool_.num_threads() * weight.cols * 4));
  EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(weight.cols),
          [&](int64_t t, int32_t thread) {
            float* row = rows + thread * weight.cols;
            weight.UnpackRow(static_cast<int64_t>(batch().positions[t]) + offset, row);
            for (int64_t i = 0; i < weight.cols; ++i) x.row<float>(t)[i] += row[i];
          });
}

void CpuOps::AddTokenTypes(const PackedWeight& table, Tensor x) {
  const CpuWeight& weight = AsCpu(table);
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

void CpuOps::AddSegments(const SegmentArgs& args) {
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

void CpuOps::AdaptEmbedding(const AdapterMatrix& adapters, Tensor x) {
  if (adapter_groups_.segments.empty()) return;
  EachRow(batch().n_tokens(), kNsPerGatheredElement * static_cast<double>(x.cols),
          [&](int64_t t, int32_t) {
            const int32_t slot = SlotOf({}, t);
            const int64_t token = batch().token_ids[static_cast<size_t>(t)] - adapters.first_token;
            if (slot < 0 || token < 0 || token >= adapters.num_tokens) return;
            AdaptEmbeddingRow(adapters, slot, token, *table_.rows, x, t);
          });
}

void CpuOps::Linear(const LinearArgs& args) {
  if (args.norm.has_value()) Norm(*args.norm);
  if (adapter_groups_.segments.empty()) return cpu::Linear(args, *table_.linear, pool_, linear_);
  if (args.reader != nullptr) {  // adapters of the reader need the outputs themselves
    LinearArgs alone = args;
    alone.reader = nullptr;
    alone.norm = std::nullopt;
    return Linear(alone);
  }
  if (args.adapters == nullptr) return cpu::Linear(args, *table_.linear, pool_, linear_);
  if (!args.adapter_rows.of_logits) return LinearWithAdapters(args, adapter_groups_);
  row_slots_.clear();
  for (int64_t t = 0; t < args.x.rows; ++t) row_slots_.push_back(SlotOf(args.adapter_rows, t));
  LinearOfSlots(args, row_slots_);
}

void CpuOps::Attention(const AttentionArgs& args) {
  cpu::Attention(batch().OfGroup(args.cache.group), args, *table_.attention, pool_, attention_);
}

void CpuOps::TokenShift(const TokenShiftArgs& args) {
  cpu::TokenShift(batch().OfGroup(args.cache.group), args, *table_.wkv, pool_, time_mix_);
}

void CpuOps::TimeMix(const WkvArgs& args) {
  cpu::TimeMix(batch().OfGroup(args.cache.group), args, *table_.wkv, pool_, time_mix_);
}

void CpuOps::SquashElements(Squash kind, Tensor x) {
  constexpr double kNsPerElement = 1;
  EachRow(x.rows, kNsPerElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
    const auto squash = kind == Squash::kTanh ? table_.wkv->tanh : table_.wkv->sigmoid;
    squash(x.row<float>(t), x.cols);
  });
}

void CpuOps::SelectPositions(const SelectArgs& args) {
  cpu::SelectPositions(batch().OfGroup(args.cache.group), args, *table_.selection, pool_,
                       selection_);
}

bool CpuOps::SeesMoreThan(int32_t group, int32_t positions) const {
  const HostBatch own = batch().OfGroup(group);
  return std::any_of(own.context_len.begin(), own.context_len.end(),
                     [positions](int32_t length) { return length > positions; });
}

void CpuOps::ShortConv(const ShortConvArgs& args) {
  cpu::ShortConv(batch().OfGroup(args.cache.group), args, *table_.rows, pool_, conv_inputs_);
}

void CpuOps::Recurrence(const RecurrenceArgs& args) {
  cpu::Recurrence(batch().OfGroup(args.cache.group), args, *table_.recurrence, pool_, recurrence_);
}

void CpuOps::GateElements(Tensor gate, Tensor x) {
  EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
    table_.recurrence->gate_elements(gate.row<float>(t), x.cols, x.row<float>(t));
  });
}

void CpuOps::Sharpen(const SharpenArgs& args) {
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

void CpuOps::Xielu(const XieluArgs& args) {
  constexpr double kNsPerElement = 4;
  EachRow(args.x.rows, kNsPerElement * static_cast<double>(args.x.cols), [&](int64_t t, int32_t) {
    float* const row = args.x.row<float>(t);
    for (int64_t i = 0; i < args.x.cols; ++i) {
      const float x = row[i];
      const float bent = x > 0 ? args.alpha_positive * x * x
                               : args.alpha_negative * (std::expm1(std::min(x, args.eps)) - x);
      row[i] = bent + args.beta * x;
    }
  });
}

void CpuOps::Multiply(Tensor factor, Tensor x) {
  EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
    const float* const by = factor.row<float>(t);
    float* const row = x.row<float>(t);
    for (int64_t i = 0; i < x.cols; ++i) row[i] *= by[i];
  });
}

void CpuOps::Scale(Tensor x, float factor) {
  EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols),
          [&](int64_t t, int32_t) { table_.rows->scale(x.row<float>(t), x.cols, factor, 0.0f); });
}

void CpuOps::PredictStreams(const StreamsArgs& args) {
  HEDDLE_CHECK(args.count <= kMaxStreams, "too many streams");
  EachRow(args.streams.rows, kNsPerNormElement * static_cast<double>(args.streams.cols),
          [&](int64_t t, int32_t) { PredictStreamsRow(args, t); });
}

void CpuOps::CorrectStreams(const StreamsArgs& args) {
  EachRow(args.streams.rows, kNsPerNormElement * static_cast<double>(args.streams.cols),
          [&](int64_t t, int32_t) { CorrectStreamsRow(args, t); });
}

void CpuOps::MatchMagnitude(Tensor like, Tensor x) {
  EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
    MatchMagnitudeRow(like.row<float>(t), x.row<float>(t), x.cols);
  });
}

void CpuOps::SparseGate(const SparseGateArgs& args) {
  EachRow(args.gate_up.rows, kNsPerNormElement * static_cast<double>(args.gate_up.cols),
          [&](int64_t t, int32_t) { SparseGateRow(args, t); });
}

void CpuOps::ExpertMix(const ExpertMixArgs& args) {
  cpu::ExpertMix(
      args, batch().adapter_slot,
      [this](const LinearArgs& linear, std::span<const int32_t> slots) {
        LinearOfSlots(linear, slots);
      },
      pool_, experts_);
}

void CpuOps::HeadLinear(const HeadLinearArgs& args) {
  cpu::HeadLinear(
      args, batch().adapter_slot,
      [this](const LinearArgs& linear, std::span<const int32_t>) { Linear(linear); }, pool_);
}

void CpuOps::GateRows(Tensor gate_f32, Tensor x) {
  EachRow(x.rows, kNsPerNormElement * static_cast<double>(x.cols), [&](int64_t t, int32_t) {
    const float factor = 1.0f / (1.0f + std::exp(-*gate_f32.row<float>(t)));
    table_.rows->scale(x.row<float>(t), x.cols, factor, 0.0f);
  });
}

void CpuOps::NarrowToLogitRows() {
  narrow_ = &logit_batch_.Make(batch_.view());
  adapter_groups_.Assign(narrow_->adapter_slot, kAdapterSegmentRows);
}

void CpuOps::GatherLogitRows(Tensor x, Tensor out) {
  for (size_t i = 0; i < batch().logit_rows.size(); ++i) {
    const float* from = x.row<float>(batch().logit_rows[i]);
    std::copy(from, from + x.cols, out.row<float>(static_cast<int64_t>(i)));
  }
}

void CpuOps::CopyRows(Tensor x, Tensor out) {
  EachRow(x.rows, kNsPerGatheredElement * static_cast<double>(x.cols),
          [&](int64_t t, int32_t) { std::copy_n(x.row<float>(t), x.cols, out.row<float>(t)); });
}

void CpuOps::ScaleLogits(Tensor logits_f32, float scale, float softcap) {
  EachRow(logits_f32.rows, static_cast<double>(logits_f32.cols), [&](int64_t t, int32_t) {
    table_.rows->scale(logits_f32.row<float>(t), logits_f32.cols, scale, softcap);
  });
}

void CpuOps::Sample(const SampleArgs& args) { cpu::Sample(args, *table_.rows, pool_, samplers_); }

void CpuOps::JoinGroup(std::shared_ptr<Communicator> communicator) {
  ranks_.emplace(std::move(communicator), *table_.rows, pool_);
}

void CpuOps::SendRows(Tensor rows, int32_t to) {
  HEDDLE_CHECK(stages_ != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
  PostRows(*stages_, rows, to, pool_, &stage_wire_);
}

void CpuOps::RecvRows(Tensor rows, int32_t from) {
  HEDDLE_CHECK(stages_ != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
  TakeRows(*stages_, rows, from, pool_, &stage_wire_);
}

void CpuOps::EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) {
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

void CpuOps::GatherColumns(const GatherColumnsArgs& args) {
  HEDDLE_CHECK(ranks_.has_value(), "this device is in no group of ranks");
  ranks_->GatherColumns(args);
}

void CpuOps::LinearWithAdapters(const LinearArgs& args, const AdapterGroups& groups) {
  const AdapterCall adapters(*args.adapters, groups, *table_.rows, args.x, pool_, adapters_);
  cpu::Linear(args, *table_.linear, pool_, linear_, adapters.empty() ? nullptr : &adapters);
}

void CpuOps::LinearOfSlots(const LinearArgs& args, std::span<const int32_t> slots) {
  if (slots.empty() || args.adapters == nullptr) {
    return cpu::Linear(args, *table_.linear, pool_, linear_);
  }
  other_groups_.Assign(slots, kAdapterSegmentRows);
  if (other_groups_.segments.empty()) return cpu::Linear(args, *table_.linear, pool_, linear_);
  LinearWithAdapters(args, other_groups_);
}

}  // namespace heddle::kernels::cpu
