// The interface of an instruction set's kernel sources: tables of function pointers, chosen once at
// start. Plain types only; the kernel sources include nothing else of ours.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/linear_table.h"
#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/row_table.h"
#include "kernels/cpu/selection_table.h"
#include "kernels/cpu/wkv_table.h"

namespace heddle::kernels::cpu {

// Peak loops: each returns a value that depends on all its work.
struct PeakKernels {
  float (*read)(const void* data, int64_t bytes);
  float (*fma)(int64_t rounds);
  int64_t fma_flops;  // per round
  float (*int8)(int64_t rounds);
  int64_t int8_ops;  // per round
};

// Dot products of BF16 pairs, or tiles of them: instructions that not every processor has.
struct Bf16PeakKernels {
  float (*bf16)(int64_t rounds);
  int64_t bf16_flops;  // per round
};

struct KernelTable {
  const LinearKernels* linear;
  const RowKernels* rows;
  const AttentionKernels* attention;
  const RecurrenceKernels* recurrence;
  const SelectionKernels* selection;
  const WkvKernels* wkv;
};

extern const LinearKernels kLinearPortable;
extern const BlockKernels kBlocksPortable;
extern const RowKernels kRowsPortable;
extern const AttentionKernels kAttentionPortable;
extern const PeakKernels kPeakPortable;
#if defined(__x86_64__)
extern const LinearKernels kLinearAvx2;
extern const BlockKernels kBlocksAvx2;
extern const RowKernels kRowsAvx2;
extern const AttentionKernels kAttentionAvx2;
extern const PeakKernels kPeakAvx2;
extern const Int8DotKernels kInt8DotAvx2Vnni;
extern const BlockKernels kBlocksAvx2Vnni;
extern const PeakKernels kPeakAvx2Vnni;
extern const LinearKernels kLinearAvx512Bw;
extern const LinearKernels kLinearAvx512;
extern const Bf16DotKernels kBf16DotAvx512;
extern const Bf16TileKernels kBf16TilesAmx;
extern const TileAttention kTileAttentionAmx;
extern const Bf16BlockKernels kBlocksAvx512Bf16;
extern const BlockKernels kBlocksAvx512Bw;
extern const BlockKernels kBlocksAvx512;
extern const RowKernels kRowsAvx512;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAvx512Bf16;
extern const PeakKernels kPeakAvx512Bw;
extern const PeakKernels kPeakAvx512;
extern const Bf16PeakKernels kPeakAvx512Bf16;
extern const Bf16PeakKernels kPeakAmx;
#endif

}  // namespace heddle::kernels::cpu
