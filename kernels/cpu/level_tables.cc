#include "kernels/cpu/level_tables.h"

#include "base/check.h"
#include "kernels/block_format.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cpu {
namespace {

#if defined(__x86_64__)
// The avx2 level's kernels, except those for int8.
const LinearKernels& LinearAvx2Vnni() {
  static const LinearKernels kernels = [] {
    LinearKernels made = kLinearAvx2;
    made.tiles[static_cast<size_t>(TileKind::kInt8)] = kInt8DotAvx2Vnni.tile;
    made.formats[static_cast<size_t>(DType::kQ8_0)] = kInt8DotAvx2Vnni.q8_0;
    made.formats[static_cast<size_t>(DType::kQ4_0)] = kInt8DotAvx2Vnni.q4_0;
    made.blocks = kInt8DotAvx2Vnni.blocks;
    return made;
  }();
  return kernels;
}

// How tiles of bytes are prepared is the avx2 level's: their layout is the same.
const BlockKernels& BlocksAvx512Bw() {
  static const BlockKernels kernels = [] {
    BlockKernels made = kBlocksAvx512Bw;
    made.shared_tile.prepare = kBlocksAvx2.shared_tile.prepare;
    return made;
  }();
  return kernels;
}

const LinearKernels& LinearAvx512Bw() {
  static const LinearKernels kernels = [] {
    LinearKernels made = kLinearAvx512Bw;
    constexpr auto kBytes = static_cast<size_t>(TileKind::kInt8);
    made.tiles[kBytes].prepare = kLinearAvx2.tiles[kBytes].prepare;
    made.blocks = &BlocksAvx512Bw();
    return made;
  }();
  return kernels;
}

// The avx512 level's kernels, except those for BF16 and small floats.
const BlockKernels& BlocksAvx512Bf16() {
  static const BlockKernels kernels = [] {
    BlockKernels made = kBlocksAvx512;
    made.formats[static_cast<size_t>(BlockFormat::kF8G32)] = kBlocksAvx512Bf16.f8_g32;
    made.formats[static_cast<size_t>(BlockFormat::kF8G128)] = kBlocksAvx512Bf16.f8_g128;
    made.formats[static_cast<size_t>(BlockFormat::kNF4)] = kBlocksAvx512Bf16.nf4;
    made.formats[static_cast<size_t>(BlockFormat::kFP4)] = cpu::kBlocksAvx512Bf16.fp4;
    return made;
  }();
  return kernels;
}

const LinearKernels& LinearAvx512Bf16() {
  static const LinearKernels kernels = [] {
    LinearKernels made = kLinearAvx512;
    made.formats[static_cast<size_t>(DType::kBF16)] = kBf16DotAvx512.format;
    made.bf16_tile = kBf16DotAvx512.tile;
    made.blocks = &BlocksAvx512Bf16();
    return made;
  }();
  return kernels;
}

// The avx512_bf16 level's kernels, except those for BF16.
const LinearKernels& LinearAmx() {
  static const LinearKernels kernels = [] {
    LinearKernels made = LinearAvx512Bf16();
    made.formats[static_cast<size_t>(DType::kBF16)] = kBf16TilesAmx.format;
    made.bf16_rows_tile = kBf16TilesAmx.tile;
    made.release_tiles = kBf16TilesAmx.release;
    made.finish_tiles = kBf16TilesAmx.finish;
    return made;
  }();
  return kernels;
}

const AttentionKernels& AttentionAmx() {
  static const AttentionKernels kernels = [] {
    AttentionKernels made = kAttentionAvx512Bf16;
    made.attend = kTileAttentionAmx.attend;
    made.release_tiles = kTileAttentionAmx.release;
    made.ns_per_score = 1.5;
    return made;
  }();
  return kernels;
}
#endif

}  // namespace

KernelTable TableFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) {
    return {&LinearAmx(),       &kRowsAvx512,          &AttentionAmx(),
            &kRecurrenceAvx512, &kSelectionAvx512Bf16, &kWkvAvx512};
  }
  if (isa == Isa::kAvx512Bf16) {
    return {&LinearAvx512Bf16(), &kRowsAvx512,          &kAttentionAvx512Bf16,
            &kRecurrenceAvx512,  &kSelectionAvx512Bf16, &kWkvAvx512};
  }
  if (isa == Isa::kAvx512)
    return {&kLinearAvx512,     &kRowsAvx512,      &kAttentionAvx512,
            &kRecurrenceAvx512, &kSelectionAvx512, &kWkvAvx512};
  if (isa == Isa::kAvx512Bw) {
    return {&LinearAvx512Bw(),  &kRowsAvx512,      &kAttentionAvx512,
            &kRecurrenceAvx512, &kSelectionAvx512, &kWkvAvx512};
  }
  if (isa == Isa::kAvx2Vnni) {
    return {&LinearAvx2Vnni(), &kRowsAvx2,      &kAttentionAvx2,
            &kRecurrenceAvx2,  &kSelectionAvx2, &kWkvAvx2};
  }
  if (isa == Isa::kAvx2)
    return {&kLinearAvx2,     &kRowsAvx2,      &kAttentionAvx2,
            &kRecurrenceAvx2, &kSelectionAvx2, &kWkvAvx2};
#endif
  HEDDLE_CHECK(isa == Isa::kPortable, "no kernels for this level");
  return {&kLinearPortable,     &kRowsPortable,      &kAttentionPortable,
          &kRecurrencePortable, &kSelectionPortable, &kWkvPortable};
}

}  // namespace heddle::kernels::cpu
