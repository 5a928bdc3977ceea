// Pages of an 8-bit cache as pages of 16-bit floats, for attention of long chunks of prompts: tiles
// of 16 bits are what warpgroups can transpose, and a tile is read by every tile of queries, so
// that converting it once, in memory, costs less than where it is read. Moves a byte in and two out
// per element; what comes out is read while much of it is in the L2.
//
// A thread takes 16 elements. F8 becomes F16, exactly; int8 BF16, with its scale applied and
// rounded once: what kernels for 8-bit caches compute with (attention_flash_stages.cuh).
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 16;  // of a thread

struct Widened {
  Vec16 half[2];
};

HEDDLE_DEVICE Widened Widen(const Vec16& codes, float, Float8) {
  Widened out;
  HEDDLE_UNROLL
  for (int i = 0; i < 8; ++i) {
    out.half[i / 4].word[i % 4] = HalvesOfF8(codes.word[i / 2] >> (16 * (i % 2)) & 0xFFFF);
  }
  return out;
}

HEDDLE_DEVICE Widened Widen(const Vec16& codes, float scale, Int8) {
  Widened out;
  HEDDLE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = codes.word[i / 2] >> (16 * (i % 2));
    const auto low = static_cast<float>(static_cast<int8_t>(pair & 0xFF));
    const auto high = static_cast<float>(static_cast<int8_t>(pair >> 8 & 0xFF));
    out.half[i / 4].word[i % 4] = Pack2(low * scale, high * scale, BFloat16());
  }
  return out;
}

// BlockY: keys or values.
template <typename Kv>
HEDDLE_KERNEL WidenKernel(HEDDLE_PARAMS(WidenParams, p)) {
  StartInTurn();
  const KvCacheView& from = p.from;
  const int per_row = from.head_dim / kElements;
  const int per_page = from.n_kv_heads * from.page_tokens * per_row;
  const int64_t unit = static_cast<int64_t>(BlockX()) * kThreads + ThreadX();
  const int64_t page = unit / per_page;
  if (page >= p.n_pages) return;
  const int within = static_cast<int>(unit % per_page);
  const int row = within / per_row;  // of the page's heads and positions
  const void* source = BlockY() == 0 ? from.keys : from.values;
  auto* target = static_cast<uint8_t*>(BlockY() == 0 ? p.to.keys : p.to.values);
  const KeyPlace place =
      PlaceOfKey(from, p.pages[page], row % from.page_tokens, row / from.page_tokens);
  const Kv* codes = RowOfKey<Kv>(source, place) + within % per_row * kElements;
  const Widened wide =
      Widen(*reinterpret_cast<const Vec16*>(codes), ScaleOfKey(source, place, Kv()), Kv());
  auto* to = reinterpret_cast<Vec16*>(target + unit * kElements * 2);
  to[0] = wide.half[0];
  to[1] = wide.half[1];
}

}  // namespace

Error LaunchWidenPages(const WidenParams& params, Stream stream) {
  const KvCacheView& from = params.from;
  const int64_t units =
      int64_t{params.n_pages} * from.n_kv_heads * from.page_tokens * (from.head_dim / kElements);
  const LaunchShape shape = {.grid_x = CeilDiv(units, kThreads), .grid_y = 2, .threads = kThreads};
  return from.dtype == DType::kInt8 ? Launch(WidenKernel<Int8>, shape, stream, params)
                                    : Launch(WidenKernel<Float8>, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
