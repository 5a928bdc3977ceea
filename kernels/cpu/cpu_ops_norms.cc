// Norms, rotation and writes of keys and values, with what adapters change of them.
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/op_costs.h"
#include "kernels/kv_element.h"

namespace heddle::kernels::cpu {

void CpuOps::Norm(const NormArgs& args) {
  float* own = NormVectors(args);
  EachRow(args.x.rows, kNsPerNormElement * static_cast<double>(args.x.cols),
          [&](int64_t t, int32_t thread) { NormRow(args, t, thread, own); });
}

void CpuOps::RopeAngles(const RopeAnglesArgs& args) {
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

void CpuOps::RopeKvWrite(const RopeKvWriteArgs& args) {
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

void CpuOps::AllReduce(const AllReduceArgs& args) { Sum(args, /*is_begun=*/false); }
void CpuOps::EndAllReduce(const AllReduceArgs& args) { Sum(args, /*is_begun=*/true); }

void CpuOps::Sum(const AllReduceArgs& args, bool is_begun) {
  HEDDLE_CHECK(ranks_.has_value(), "this device is in no group of ranks");
  float* own = args.norm.has_value() ? NormVectors(*args.norm) : nullptr;
  ranks_->AllReduce(args, is_begun, [&](int64_t t, int32_t thread) {
    if (args.norm.has_value()) NormRow(*args.norm, t, thread, own);
  });
}

void CpuOps::BeginAllReduce(const AllReduceArgs& args) {
  HEDDLE_CHECK(ranks_.has_value(), "this device is in no group of ranks");
  ranks_->BeginAllReduce(args);
}

int32_t CpuOps::SlotOf(const AdapterRows& rows, int64_t t) const {
  if (batch().adapter_slot.empty()) return -1;
  const int64_t row = rows.first + t;
  const int64_t of_batch = rows.of_logits ? batch().logit_rows[static_cast<size_t>(row)] : row;
  return batch().adapter_slot[static_cast<size_t>(of_batch)];
}

bool CpuOps::IsAdapted(const NormArgs& args) const {
  return args.adapters != nullptr && !adapter_groups_.segments.empty();
}

float* CpuOps::NormVectors(const NormArgs& args) {
  const int64_t floats = IsAdapted(args) ? pool_.num_threads() * 2 * args.x.cols : 0;
  return static_cast<float*>(norm_vectors_.Get(floats * int64_t{sizeof(float)}));
}

void CpuOps::NormRow(const NormArgs& args, int64_t t, int32_t thread, float* vectors) const {
  NormRowArgs row{};
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

void CpuOps::AdaptNorm(const NormArgs& args, int64_t t, float* own, NormRowArgs* row) const {
  const int32_t slot = SlotOf(args.adapter_rows, t);
  if (slot < 0) return;
  const AdapterFactors& added = args.adapters->factors[int64_t{slot} * args.adapters->slot_stride];
  const int64_t dim = args.x.cols;
  if (added.gain != nullptr) {
    AddGains(added, args.weight, args.weight_offset, dim, own);
    row->weight = own;
    row->weight_offset = 0;
  }
  if (added.bias == nullptr) return;
  AddBiases(added, args.bias, dim, own + dim);
  row->bias = own + dim;
}

float* CpuOps::HeadNormVectors(const RopeKvWriteArgs& args) {
  const bool is_adapted = args.q_norm_adapters != nullptr || args.k_norm_adapters != nullptr;
  const int64_t floats = is_adapted ? int64_t{pool_.num_threads()} * args.cache.head_dim : 0;
  return static_cast<float*>(norm_vectors_.Get(floats * int64_t{sizeof(float)}));
}

void CpuOps::Rotate(const RopeKvWriteArgs& args, const HeadNorm& norm, int64_t t, int32_t heads,
                    float* row) const {
  RotateArgs rotate{};
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
      AddGains(added, norm.weight, args.norm_weight_offset, args.cache.head_dim, norm.own);
      rotate.norm = norm.own;
      rotate.norm_weight_offset = 0;
    }
  }
  rotate.cos_sin = args.cos_sin ? args.cos_sin + t * args.rotary_dim : nullptr;
  rotate.rotary_dim = args.rotary_dim;
  rotate.interleaved = args.layout == RopeLayout::kInterleaved;
  if (args.norms_last) {
    RotateArgs rotation = rotate;
    rotation.norm = nullptr;
    table_.rows->rotate(rotation);
    rotate.cos_sin = nullptr;
  }
  table_.rows->rotate(rotate);
}

void CpuOps::WriteKv(const RopeKvWriteArgs& args, int64_t t, int64_t slot) const {
  const KvCacheView& cache = args.cache;
  const KvType type = KvTypeOf(cache.dtype);
  auto* keys = static_cast<char*>(cache.keys);
  auto* values = static_cast<char*>(cache.values);
  for (int32_t h = 0; h < cache.n_kv_heads; ++h) {
    const int64_t to = RowOffset(cache, slot, h);
    const int64_t scale = ScaleOffset(cache, slot, h);
    int64_t from = static_cast<int64_t>(h) * cache.head_dim;
    table_.rows->to_kv(type, args.k.row<float>(t) + from, cache.head_dim, keys + to, keys + scale);
    if (args.v.data == nullptr) continue;
    table_.rows->to_kv(type, args.v.row<float>(t) + from, cache.head_dim, values + to,
                       values + scale);
  }
}

}  // namespace heddle::kernels::cpu
