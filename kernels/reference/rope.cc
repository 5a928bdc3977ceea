#include <cmath>

#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// The norm of a row's heads, with what its adapter adds to the weights.
struct HeadNorm {
  const float* weight = nullptr;  // nullptr: none
  AdapterFactors added;
};

HeadNorm HeadNormOf(const HostBatch& batch, const float* weight, const AdapterMatrix* adapters,
                    int64_t t) {
  HeadNorm norm{weight, {}};
  const int32_t slot = adapters == nullptr ? -1 : SlotOf(batch, {}, t);
  if (slot >= 0) norm.added = adapters->factors[int64_t{slot} * adapters->slot_stride];
  return norm;
}

void NormHead(const HeadNorm& norm, float eps, float weight_offset, int32_t n, float* head) {
  double squares = 0;
  for (int32_t i = 0; i < n; ++i) squares += static_cast<double>(head[i]) * head[i];
  double scale = 1.0 / std::sqrt(squares / n + eps);
  for (int32_t i = 0; i < n; ++i) {
    double weight = static_cast<double>(norm.weight[i]) + weight_offset;
    if (norm.added.gain != nullptr) weight += double{norm.added.vector_scale} * norm.added.gain[i];
    head[i] = static_cast<float>(head[i] * scale * weight);
  }
}

// `cos_sin` is the row's [2, rotary_dim / 2].
void Rotate(const float* cos_sin, int32_t rotary_dim, RopeLayout layout, float* head) {
  int32_t half = rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    int32_t first = layout == RopeLayout::kHalf ? i : 2 * i;
    int32_t second = layout == RopeLayout::kHalf ? i + half : 2 * i + 1;
    double cos = cos_sin[i];
    double sin = cos_sin[half + i];
    double a = head[first];
    double b = head[second];
    head[first] = static_cast<float>(a * cos - b * sin);
    head[second] = static_cast<float>(b * cos + a * sin);
  }
}

void NormAndRotate(const RopeKvWriteArgs& args, const HeadNorm& norm, int64_t t, int32_t heads,
                   float* row) {
  int32_t dim = args.cache.head_dim;
  for (int32_t h = 0; h < heads; ++h) {
    float* head = row + static_cast<int64_t>(h) * dim;
    const auto norm_head = [&] {
      if (norm.weight == nullptr) return;
      NormHead(norm, args.norm_eps, args.norm_weight_offset, dim, head);
    };
    if (!args.norms_last) norm_head();
    if (args.cos_sin) {
      Rotate(args.cos_sin + t * args.rotary_dim, args.rotary_dim, args.layout, head);
    }
    if (args.norms_last) norm_head();
  }
}

}  // namespace

void RopeAngles(const HostBatch& batch, const RopeAnglesArgs& args) {
  auto half = static_cast<int64_t>(args.inv_freq.size());
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    float* row = args.cos_sin + t * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      double angle = static_cast<double>(batch.positions[t]) * args.inv_freq[i];
      row[i] = static_cast<float>(std::cos(angle) * args.scale);
      row[half + i] = static_cast<float>(std::sin(angle) * args.scale);
    }
  }
}

void RopeKvWrite(const HostBatch& batch, const RopeKvWriteArgs& args) {
  const KvCacheView& cache = args.cache;
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    NormAndRotate(args, HeadNormOf(batch, args.q_norm, args.q_norm_adapters, t), t, args.n_heads,
                  args.q.row<float>(t));
    if (args.k.data == nullptr) continue;
    float* k = args.k.row<float>(t);
    const float* v = args.v.data ? args.v.row<float>(t) : nullptr;
    NormAndRotate(args, HeadNormOf(batch, args.k_norm, args.k_norm_adapters, t), t,
                  cache.n_kv_heads, k);
    for (int32_t h = 0; h < cache.n_kv_heads; ++h) {
      const int64_t slot = batch.kv_slot[t];
      StoreKvRow(cache, cache.keys, slot, h, k + h * cache.head_dim);
      if (v) StoreKvRow(cache, cache.values, slot, h, v + h * cache.head_dim);
    }
  }
}

}  // namespace heddle::kernels::reference
