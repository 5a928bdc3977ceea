// Rotation angles; norm and rotation of query and key heads with the write into the paged cache.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_element.cuh"

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

struct RopeParams {
  RopeKvWriteArgs args;
  const int64_t* kv_slot;
};

// One head of a row by one warp, through the warp's own shared memory.
template <typename T>
HEDDLE_DEVICE void LoadHead(const T* from, int dim, Shared<float> head) {
  for (int i = Lane(); i < dim; i += 32) head.Set(i, ToFloat(from[i]));
  SyncWarp();
}

HEDDLE_DEVICE void NormHead(const RopeKvWriteArgs& a, const float* weight, Shared<float> head) {
  const int dim = a.cache.head_dim;
  float squares = 0;
  for (int i = Lane(); i < dim; i += 32) squares += head.Get(i) * head.Get(i);
  float scale = Rsqrt(WarpSum(squares) / static_cast<float>(dim) + a.norm_eps);
  for (int i = Lane(); i < dim; i += 32) {
    head.Set(i, head.Get(i) * scale * (weight[i] + a.norm_weight_offset));
  }
  SyncWarp();
}

HEDDLE_DEVICE void RotateHead(const RopeKvWriteArgs& a, int64_t t, Shared<float> head) {
  const int half = a.rotary_dim / 2;
  const float* cos_sin = a.cos_sin + t * a.rotary_dim;
  for (int i = Lane(); i < half; i += 32) {
    int first = a.layout == RopeLayout::kHalf ? i : 2 * i;
    int second = a.layout == RopeLayout::kHalf ? i + half : 2 * i + 1;
    float x = head.Get(first);
    float y = head.Get(second);
    head.Set(first, x * cos_sin[i] - y * cos_sin[half + i]);
    head.Set(second, y * cos_sin[i] + x * cos_sin[half + i]);
  }
  SyncWarp();
}

template <typename T>
HEDDLE_DEVICE void StoreHead(Shared<float> head, int dim, T* to) {
  for (int i = Lane(); i < dim; i += 32) to[i] = RoundTo(head.Get(i), T());
  SyncWarp();
}

// A key or value to the cache, in its type.
template <typename Kv>
HEDDLE_DEVICE void StoreKey(Shared<float> head, int dim, void* array, const KeyPlace& place, Kv) {
  StoreHead(head, dim, reinterpret_cast<Kv*>(static_cast<uint8_t*>(array) + place.row));
}
HEDDLE_DEVICE void StoreKey(Shared<float> head, int dim, void* array, const KeyPlace& place, Int8) {
  float largest = 0;
  float finite = 1;
  for (int i = Lane(); i < dim; i += 32) {
    const float size = Abs(head.Get(i));
    finite = size < Infinity() ? finite : 0.0f;  // not of NaN either
    largest = Max(largest, size);
  }
  largest = WarpMax(largest);
  finite = -WarpMax(-finite);
  const float scale = largest < 0x1p-100f ? 0.0f : largest / 127.0f;
  const float inverse = finite > 0 && scale > 0 ? 1.0f / scale : 0.0f;
  uint8_t* to = static_cast<uint8_t*>(array) + place.row;
  for (int i = Lane(); i < dim; i += 32) {
    const float code = inverse > 0 ? RoundToInteger(head.Get(i) * inverse) : 0.0f;
    const float capped = -Max(-Max(code, -127.0f), -127.0f);
    to[i] = static_cast<uint8_t>(static_cast<int8_t>(capped));
  }
  if (Lane() < 4) {
    const uint32_t bits = finite > 0 ? FloatToBits(scale) : 0x7FC00000u;
    static_cast<uint8_t*>(array)[place.scale + Lane()] = static_cast<uint8_t>(bits >> (8 * Lane()));
  }
  SyncWarp();
}

// A block per row; its warps take the row's query, key and value heads in turn.
template <typename T, typename Kv>
HEDDLE_KERNEL RopeKvWriteKernel(HEDDLE_PARAMS(RopeParams, p)) {
  StartInTurn();
  const RopeKvWriteArgs& a = p.args;
  const int dim = a.cache.head_dim;
  const int kv_heads = a.cache.n_kv_heads;
  const int arrays = a.v.data != nullptr ? 2 : 1;
  const int64_t t = BlockX();
  const int64_t slot = p.kv_slot[t];
  const int64_t page = slot / a.cache.page_tokens;
  const int64_t offset = slot % a.cache.page_tokens;
  SharedArena arena;
  Shared<float> head = arena.Take<float>(kWarps * dim).From(WarpIndex() * dim);
  for (int h = WarpIndex(); h < a.n_heads + arrays * kv_heads; h += kWarps) {
    const bool is_query = h < a.n_heads;
    const bool is_value = h >= a.n_heads + kv_heads;
    const int kv_head = is_query ? 0 : (h - a.n_heads) % kv_heads;
    T* query = a.q.row<T>(t) + static_cast<int64_t>(h) * dim;
    const T* from = is_query   ? query
                    : is_value ? a.v.row<T>(t) + static_cast<int64_t>(kv_head) * dim
                               : a.k.row<T>(t) + static_cast<int64_t>(kv_head) * dim;
    LoadHead(from, dim, head);
    const float* norm = is_value ? nullptr : is_query ? a.q_norm : a.k_norm;
    if (norm != nullptr) NormHead(a, norm, head);
    if (!is_value && a.cos_sin != nullptr) RotateHead(a, t, head);
    if (is_query) {
      StoreHead(head, dim, query);
      continue;
    }
    StoreKey(head, dim, is_value ? a.cache.values : a.cache.keys,
             PlaceOfKey(a.cache, page, offset, kv_head), Kv());
  }
}

}  // namespace

Error LaunchRopeAngles(const RopeAnglesParams& params, Stream stream) {
  const LaunchShape shape = {.grid_x = params.batch.n_tokens, .threads = 64};
  return Launch(RopeAnglesKernel, shape, stream, params);
}

Error LaunchRopeKvWrite(const DeviceBatch& batch, const RopeKvWriteArgs& args, DType act,
                        Stream stream) {
  const RopeParams params = {args, batch.kv_slot};
  const LaunchShape shape = {.grid_x = batch.n_tokens,
                             .threads = 32 * kWarps,
                             .shared_bytes = SharedBytesFor<float>(kWarps * args.cache.head_dim)};
  return ForActivation(act, [&]<typename T>(T) {
    return ForKvType(args.cache.dtype, [&]<typename Kv>(Kv) {
      return Launch(RopeKvWriteKernel<T, Kv>, shape, stream, params);
    });
  });
}

}  // namespace heddle::kernels::cuda
