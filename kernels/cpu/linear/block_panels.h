// Packs panels of the blocked formats, and reads back one row. Portable code for all levels;
// linear_blocks.h multiplies with the panels.
//
// Layout, for R rows (LinearKernels::panel_rows). Per block of the format:
//   scale   F16, BF16 or F32 [R]
//   offset  F16 [R]                          formats with an offset
//   zero    int8 [R]                         formats with a zero point
// and then per 32 columns of it, with n = 32 / sub_columns:
//   sub-scales   int8 or E4M3 [n][R]         formats with sub-scales
//   sub-offsets  uint8 [n][R]                and an offset; kNibbles: in the same bytes
//   low plane    the codes' low 2, 4 or 8 bits
//   high plane   the 1 or 2 bits above them, of 3-, 5- and 6-bit codes
// A plane of b bits is b words [R][4 bytes] of 8 column groups of four: byte j of group g's word
// holds column 4 g + j; group g lies in word g % b, b * (g / b) bits up. So a vector load, a shift
// and a mask give four columns of every row, in the order that dot-product instructions want.
#pragma once

#include <cstdint>

#include "kernels/block_format.h"

namespace heddle::kernels::cpu {

constexpr int32_t kPanelBlock = 32;  // columns that share an activation scale

int64_t BlockPanelBytes(BlockFormat format, int32_t panel_rows, int64_t cols);

// Implements FormatKernels::pack.
void PackBlockPanel(BlockFormat format, int32_t panel_rows, const void* source, int64_t row_bytes,
                    int32_t rows, int64_t cols, void* panel);

// Implements FormatKernels::unpack: gives exactly what DequantizeRow gives for the row.
void UnpackBlockPanel(BlockFormat format, int32_t panel_rows, const void* panel, int32_t row,
                      int64_t cols, float* out);

}  // namespace heddle::kernels::cpu
