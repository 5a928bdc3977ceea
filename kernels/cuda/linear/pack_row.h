// One row of a checkpoint matrix into the device's layouts (weight_layout.h), on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// The layout that keeps a lone matrix of `dtype`; kF32 for F32.
WeightLayout LayoutOf(DType dtype);

// A layout that both fit in, the narrowest of integers; kF32 if only floats hold both.
WeightLayout Join(WeightLayout a, WeightLayout b);

// For kTable4: the numbers of `dtype` (kIQ4_NL, kIQ4_XS, kMXFP4 or kNF4) into `weight`.
void SetTable(DType dtype, DeviceWeight* weight);

// The layout of one scale per row for matrices that `layout` keeps; nullopt: there is none.
std::optional<WeightLayout> PerRowLayout(WeightLayout layout);

// Whether all blocks of the row, given by SourceRows, have one scale and no zero point, so that
// PerRowLayout keeps the row exactly.
bool HasOneScale(const WeightSource& source, const uint8_t* row);

// The layout of scales of tiles for matrices that `layout` keeps; nullopt: there is none.
std::optional<WeightLayout> TiledLayout(WeightLayout layout);

// Whether the blocks of `row` have, in each kScaleTile columns, the one scale that those of
// `first`, the first row of its tiles, have there; both given by SourceRows. REQUIRES: the layout
// of the source's dtype has a TiledLayout.
bool HasScalesOf(const WeightSource& source, const uint8_t* row, const uint8_t* first);

// The scales of the tiles that begin with `row`, which TiledLayout keeps, into `to`
// [tiles_stride].
void PackTileScales(const WeightSource& source, const uint8_t* row, float* to);

// Packs one row, given by SourceRows, into `data` [row_bytes], `scales` [scales_stride], both
// zeroed before, and `factor`. REQUIRES: the layout is LayoutOf(source.dtype), what that joins to,
// its PerRowLayout if HasOneScale, its TiledLayout if HasScalesOf, kBF16 or kF32. Scales of tiles
// are PackTileScales' to pack.
void PackRow(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
             uint8_t* data, uint16_t* scales, float* factor);

}  // namespace heddle::kernels::cuda
