// Packs one row of a checkpoint matrix into the device's layouts (weight_layout.h), on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// The layout that keeps a lone matrix of `dtype`; kF32 for F32.
WeightLayout LayoutOf(DType dtype);

// The layout of a format with a table (HasTable) as the integers that its codes stand for, beside
// sources with other tables or none; kF32 if they stand for other numbers (NF4, FP4).
WeightLayout LayoutOfIntegers(DType dtype);

// The narrowest integer layout that holds both; kF32 if only floats do.
WeightLayout Join(WeightLayout a, WeightLayout b);

// Writes the 16 numbers of `dtype`, whose layout HasTable, to `weight`.
void SetTable(DType dtype, DeviceWeight* weight);

// The layout with one scale per row for matrices of layout `layout`; nullopt if there is none.
std::optional<WeightLayout> PerRowLayout(WeightLayout layout);

// Whether all blocks of the row, given by SourceRows, have one scale and no zero point, so that
// PerRowLayout keeps the row exactly.
bool HasOneScale(const WeightSource& source, const uint8_t* row);

// The layout with tile scales for matrices of layout `layout`; nullopt if there is none.
std::optional<WeightLayout> TiledLayout(WeightLayout layout);

// Whether, in each kScaleTile columns, the blocks of `row` have the same single scale as those of
// `first`, the first row of its tiles; both come from SourceRows. REQUIRES: the layout of the
// source's dtype has a TiledLayout.
bool HasScalesOf(const WeightSource& source, const uint8_t* row, const uint8_t* first);

// Writes the scales of the tiles that begin with `row`, which TiledLayout keeps, to `to`
// [tiles_stride].
void PackTileScales(const WeightSource& source, const uint8_t* row, float* to);

// Packs one row, given by SourceRows, into `data` [row_bytes], `scales` [scales_stride], both
// zeroed before, and `factor`. REQUIRES: the layout is LayoutOf or LayoutOfIntegers(source.dtype),
// a Join of it, its PerRowLayout if HasOneScale, its TiledLayout if HasScalesOf, kBF16 or kF32.
// PackTileScales packs the scales of tiles.
void PackRow(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
             uint8_t* data, uint16_t* scales, float* factor);

}  // namespace heddle::kernels::cuda
