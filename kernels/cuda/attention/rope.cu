// Rotation angles; norm and rotation of query and key heads with the write into the paged cache.
//
// A head is a few hundred bytes, and its processing is a chain of waits (its load, shared memory,
// the angles, the store), so every head has its own warp and all heads of a row are in flight at
// once. Each lane moves kWidth columns; arithmetic is divided by single columns, the same for every
// width.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

HEDDLE_KERNEL RopeAnglesKernel(HEDDLE_PARAMS(RopeAnglesParams, p)) {
  StartInTurn();
  const int t = BlockX();
  float* row = p.cos_sin + static_cast<int64_t>(t) * 2 * p.half;
  for (int i = ThreadX(); i < p.half; i += ThreadCount()) {
    double sin, cos;
    SinCos(static_cast<double>(p.batch.positions[t]) * p.inv_freq[i], &sin, &cos);
    row[i] = static_cast<float>(cos * p.scale);
    row[p.half + i] = static_cast<float>(sin * p.scale);
  }
}

constexpr int kWarps = 4;
constexpr int kWide = 4;  // columns
constexpr int kLanePairs = kMaxFrequencies / 32;

struct RopeParams {
  RopeKvWriteArgs args;
  HeadNormAdapters adapters;
  const int64_t* kv_slot;
};

// The keys and the values, as far as they are written.
HEDDLE_HOST_DEVICE int ArraysOf(const RopeKvWriteArgs& args) {
  return (args.k.data != nullptr ? 1 : 0) + (args.v.data != nullptr ? 1 : 0);
}

// The angles of the pairs of columns that this lane rotates: i * 32 + lane.
struct Angles {
  float cos[kLanePairs];
  float sin[kLanePairs];
};
HEDDLE_DEVICE Angles LoadAngles(const RopeKvWriteArgs& a, int64_t t) {
  const int half = a.rotary_dim / 2;
  const float* cos_sin = a.cos_sin + t * a.rotary_dim;
  Angles angles;
  HEDDLE_UNROLL
  for (int i = 0; i < kLanePairs; ++i) {
    const int pair = i * 32 + Lane();
    angles.cos[i] = pair < half ? cos_sin[pair] : 1.0f;
    angles.sin[i] = pair < half ? cos_sin[half + pair] : 0.0f;
  }
  return angles;
}

// Processes one head of a row by one warp, through the warp's own shared memory.
template <int kWidth, typename T>
HEDDLE_DEVICE void LoadHead(const T* from, int dim, Shared<float> head) {
  for (int i = Lane() * kWidth; i < dim; i += 32 * kWidth) {
    const auto items = LoadGroup<kWidth>(from + i);
    Group<float, kWidth> values;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) values.item[j] = ToFloat(items.item[j]);
    head.SetAs(i, values);
  }
  SyncWarp();
}

// The row's gains to a norm's weights, and their scale; nullptr: none.
struct Gains {
  const float* gain;
  float scale;
};
HEDDLE_DEVICE Gains GainsOf(const NormAdapters& adapters, int64_t t) {
  const int32_t slot = adapters.factors == nullptr ? -1 : adapters.slots[t];
  if (slot < 0) return {nullptr, 0.0f};
  const AdapterFactors& factors = adapters.factors[int64_t{slot} * adapters.slot_stride];
  return {factors.gain, factors.vector_scale};
}

HEDDLE_DEVICE void NormHead(const RopeKvWriteArgs& a, const float* weight, const Gains& added,
                            Shared<float> head) {
  const int dim = a.cache.head_dim;
  float squares = 0;
  for (int i = Lane(); i < dim; i += 32) squares += head.Get(i) * head.Get(i);
  float scale = Rsqrt(WarpSum(squares) / static_cast<float>(dim) + a.norm_eps);
  for (int i = Lane(); i < dim; i += 32) {
    const float more = added.gain == nullptr ? 0.0f : added.scale * added.gain[i];
    head.Set(i, head.Get(i) * scale * (weight[i] + a.norm_weight_offset + more));
  }
  SyncWarp();
}

HEDDLE_DEVICE void RotateHead(const RopeKvWriteArgs& a, const Angles& angles, Shared<float> head) {
  const int half = a.rotary_dim / 2;
  HEDDLE_UNROLL
  for (int i = 0; i < kLanePairs; ++i) {
    const int pair = i * 32 + Lane();
    if (pair >= half) continue;
    const int first = a.layout == RopeLayout::kHalf ? pair : 2 * pair;
    const int second = a.layout == RopeLayout::kHalf ? pair + half : 2 * pair + 1;
    const RotatedPair rotated =
        Rotate(head.Get(first), head.Get(second), angles.cos[i], angles.sin[i]);
    head.Set(first, rotated.first);
    head.Set(second, rotated.second);
  }
  SyncWarp();
}

template <int kWidth, typename T>
HEDDLE_DEVICE void StoreHead(Shared<float> head, int dim, T* to) {
  for (int i = Lane() * kWidth; i < dim; i += 32 * kWidth) {
    const auto values = head.GetAs<Group<float, kWidth>>(i);
    Group<T, kWidth> items;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) items.item[j] = RoundTo(values.item[j], T());
    StoreGroup(to + i, items);
  }
}

// Writes a key or value to the cache, in its type.
template <int kWidth, typename Kv>
HEDDLE_DEVICE void StoreKey(Shared<float> head, int dim, void* array, const KeyPlace& place, Kv) {
  StoreHead<kWidth>(head, dim, reinterpret_cast<Kv*>(static_cast<uint8_t*>(array) + place.row));
}
template <int kWidth>
HEDDLE_DEVICE void StoreKey(Shared<float> head, int dim, void* array, const KeyPlace& place, Int8) {
  float largest = 0;
  float finite = 1;
  for (int i = Lane(); i < dim; i += 32) {
    const float size = Abs(head.Get(i));
    finite = size < Infinity() ? finite : 0.0f;  // also false for NaN
    largest = Max(largest, size);
  }
  largest = WarpMax(largest);
  finite = -WarpMax(-finite);
  const float scale = largest < 0x1p-100f ? 0.0f : largest / 127.0f;
  const float inverse = finite > 0 && scale > 0 ? 1.0f / scale : 0.0f;
  Int8* to = static_cast<Int8*>(array) + place.row;
  for (int i = Lane() * kWidth; i < dim; i += 32 * kWidth) {
    const auto values = head.GetAs<Group<float, kWidth>>(i);
    Group<Int8, kWidth> codes;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const float code = inverse > 0 ? RoundToInteger(values.item[j] * inverse) : 0.0f;
      codes.item[j] = {static_cast<int8_t>(-Max(-Max(code, -127.0f), -127.0f))};
    }
    StoreGroup(to + i, codes);
  }
  if (Lane() < 4) {
    const uint32_t bits = finite > 0 ? FloatToBits(scale) : 0x7FC00000u;
    static_cast<uint8_t*>(array)[place.scale + Lane()] = static_cast<uint8_t>(bits >> (8 * Lane()));
  }
}

// BlockX: a row. BlockY: kWarps of its query, key and value heads, in that order.
template <typename T, typename Kv, int kWidth>
HEDDLE_KERNEL RopeKvWriteKernel(HEDDLE_PARAMS(RopeParams, p)) {
  StartInTurn();
  const RopeKvWriteArgs& a = p.args;
  const int dim = a.cache.head_dim;
  const int kv_heads = a.cache.n_kv_heads;
  const int64_t t = BlockX();
  const int h = BlockY() * kWarps + WarpIndex();
  const bool is_query = h < a.n_heads;
  const bool is_value = h >= a.n_heads + kv_heads;
  const int kv_head = is_query ? 0 : (h - a.n_heads) % kv_heads;
  if (h >= a.n_heads + ArraysOf(a) * kv_heads) return;
  SharedArena arena;
  Shared<float> head = arena.Take<float>(kWarps * dim).From(WarpIndex() * dim);
  const bool rotates = !is_value && a.cos_sin != nullptr;
  const Angles angles = rotates ? LoadAngles(a, t) : Angles();  // in flight with the head
  const int64_t slot = is_query ? 0 : p.kv_slot[t];
  T* query = a.q.row<T>(t) + static_cast<int64_t>(h) * dim;
  const T* from = is_query   ? query
                  : is_value ? a.v.row<T>(t) + static_cast<int64_t>(kv_head) * dim
                             : a.k.row<T>(t) + static_cast<int64_t>(kv_head) * dim;
  LoadHead<kWidth>(from, dim, head);
  const float* norm = is_value ? nullptr : is_query ? a.q_norm : a.k_norm;
  const Gains gains =
      norm == nullptr ? Gains{} : GainsOf(is_query ? p.adapters.q_norm : p.adapters.k_norm, t);
  if (norm != nullptr && !a.norms_last) NormHead(a, norm, gains, head);
  if (rotates) RotateHead(a, angles, head);
  if (norm != nullptr && a.norms_last) NormHead(a, norm, gains, head);
  if (is_query) return StoreHead<kWidth>(head, dim, query);
  const KeyPlace place =
      PlaceOfKey(a.cache, slot / a.cache.page_tokens, slot % a.cache.page_tokens, kv_head);
  StoreKey<kWidth>(head, dim, is_value ? a.cache.values : a.cache.keys, place, Kv());
}

// Whether all rows and heads may be moved kWide columns at a time, in activations and cache.
template <typename T>
bool IsWide(const RopeKvWriteArgs& args) {
  auto fits = [](const void* data, int64_t stride, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % (kWide * bytes) == 0 && stride % kWide == 0;
  };
  const KvCacheView& cache = args.cache;
  return cache.head_dim % kWide == 0 && fits(args.q.data, args.q.stride, sizeof(T)) &&
         fits(args.k.data, args.k.stride, sizeof(T)) &&
         fits(args.v.data, args.v.stride, sizeof(T)) && fits(cache.keys, 0, sizeof(float)) &&
         fits(cache.values, 0, sizeof(float));
}

}  // namespace

Error LaunchRopeAngles(const RopeAnglesParams& params, Stream stream) {
  const LaunchShape shape = {.grid_x = params.batch.n_tokens, .threads = 64};
  return Launch(RopeAnglesKernel, shape, stream, params);
}

Error LaunchRopeKvWrite(const DeviceBatch& batch, const RopeKvWriteArgs& args,
                        const HeadNormAdapters& adapters, DType act, Stream stream) {
  RopeParams params = {args, adapters, batch.kv_slot};
  params.args.q_norm_adapters = params.args.k_norm_adapters = nullptr;  // the host's
  const int heads = args.n_heads + ArraysOf(args) * args.cache.n_kv_heads;
  const LaunchShape shape = {.grid_x = batch.n_tokens,
                             .grid_y = CeilDiv(heads, kWarps),
                             .threads = 32 * kWarps,
                             .shared_bytes = SharedBytesFor<float>(kWarps * args.cache.head_dim)};
  return ForActivation(act, [&]<typename T>(T) {
    const bool wide = IsWide<T>(args);
    return ForKvType(args.cache.dtype, [&]<typename Kv>(Kv) {
      return wide ? Launch(RopeKvWriteKernel<T, Kv, kWide>, shape, stream, params)
                  : Launch(RopeKvWriteKernel<T, Kv, 1>, shape, stream, params);
    });
  });
}

}  // namespace heddle::kernels::cuda
