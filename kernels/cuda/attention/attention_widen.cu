// Copies pages of an 8-bit cache as pages of 16-bit floats, for attention of long chunks of
// prompts: warpgroups can transpose only 16-bit tiles, and every tile of queries reads a tile of
// keys, so that converting it once, in memory, costs less than in each reader. It moves a byte in
// and two out per element; the result is read while much of it is in the L2.
//
// A thread takes 8 elements at a time, so that those of a warp are adjacent on both sides, and has
// four such loads in flight. F8 becomes F16, exactly; int8 becomes BF16, with its scale applied and
// rounded once, which is what kernels for 8-bit caches compute with (attention_flash_stages.cuh).
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_widen.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // of a unit
constexpr int kUnits = 4;     // of a thread

// Units of the copy, in its order: pages, heads, positions, elements. There are fewer than 2^31,
// because a workspace has less than 32 GiB.
HEDDLE_HOST_DEVICE int UnitsPerPage(const KvCacheView& cache) {
  return cache.n_kv_heads * cache.page_tokens * (cache.head_dim / kElements);
}

// BlockY: values or keys.
template <typename Kv>
HEDDLE_KERNEL WidenKernel(HEDDLE_PARAMS(WidenParams, p)) {
  StartInTurn();
  const KvCacheView& from = p.from;
  const int per_row = from.head_dim / kElements;
  const int per_page = UnitsPerPage(from);
  const int units = p.n_pages * per_page;
  const int first = BlockX() * (kUnits * kThreads) + ThreadX();
  const void* source = BlockY() == 0 ? from.values : from.keys;
  auto* target = static_cast<Vec16*>(BlockY() == 0 ? p.to.values : p.to.keys);
  Vec8 codes[kUnits];
  float scales[kUnits];
  HEDDLE_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int unit = first + i * kThreads;
    if (unit >= units) break;
    const int row = unit % per_page / per_row;  // among the page's heads and positions
    const KeyPlace place =
        PlaceOfKey(from, p.pages[unit / per_page], row % from.page_tokens, row / from.page_tokens);
    const Kv* at = RowOfKey<Kv>(source, place) + unit % per_row * kElements;
    codes[i] = *reinterpret_cast<const Vec8*>(at);
    scales[i] = ScaleOfKey(source, place, Kv());
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int unit = first + i * kThreads;
    if (unit < units) target[unit] = Widen(codes[i], scales[i], Kv());
  }
}

}  // namespace

Error LaunchWidenPages(const WidenParams& params, Stream stream) {
  const KvCacheView& from = params.from;
  const int64_t units = int64_t{params.n_pages} * UnitsPerPage(from);
  const LaunchShape shape = {.grid_x = CeilDiv(units, kUnits * kThreads),
                             .grid_y = params.to.keys == nullptr ? 1 : 2,
                             .threads = kThreads};
  return from.dtype == DType::kInt8 ? Launch(WidenKernel<Int8>, shape, stream, params)
                                    : Launch(WidenKernel<Float8>, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
