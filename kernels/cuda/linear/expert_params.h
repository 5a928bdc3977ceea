// Launch parameters of the kernels for mixtures of experts. Rules for all launchers are in
// runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear_params.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// The experts of a stack, among all that rows choose from. What rows chose of others is left out:
// it gets no output.
struct OwnExperts {
  int32_t first = 0;
  int32_t count = 0;
};

// Pairs that chose the same expert.
struct ExpertChunk {
  int32_t expert;
  int32_t begin;  // in ExpertGroups::pairs
  int32_t count;
};

// The (row, choice) pairs of a step in the order of their experts, cut into chunks that a block can
// take at once. They are made on the device, because only there the choices are known.
struct ExpertGroups {
  int32_t* pairs = nullptr;       // [n_pairs], behind them those of experts that are elsewhere
  ExpertChunk* chunks = nullptr;  // [max_chunks]
  int32_t* n_chunks = nullptr;    // one number, <= max_chunks
  int32_t max_chunks = 0;
  int32_t chunk_rows = 0;  // most pairs of a chunk: 8, 32, 64, 96 or 128
  // For several blocks, of kGroupPairs pairs each; nullptr: one block groups all.
  int32_t* block_counts = nullptr;  // [blocks, experts + 1]
  int32_t* counter = nullptr;       // 0 before and after
};
// A block's share where several group the pairs: two for each thread.
inline constexpr int64_t kGroupPairs = 2048;
// Up to so many pairs one block is as fast as two launches of several.
inline constexpr int64_t kMostPairsOfBlock = 4096;

// Multiplies each (row, choice) pair by one of a stack's matrices: output row `pair` comes from x
// row pair / pairs_per_row and matrix experts[pair] - own.first.
struct ExpertLinearParams {
  LinearParams linear;  // weight: all matrices; biases: those of the first one
  const int32_t* experts = nullptr;
  OwnExperts own;
  int32_t pairs_per_row = 1;
  int64_t matrix_rows = 0;
  ExpertGroups groups;  // for all but LaunchExpertLinear
};
Error LaunchRoute(const RouteArgs& args, Stream stream);
Error LaunchExpertLinear(const ExpertLinearParams& params, int64_t n_pairs, DType act,
                         Stream stream);
// Fills the arrays of `groups` from experts [n_pairs]; chunks number those that are here from 0 on.
// REQUIRES: own.count <= kMaxExperts.
Error LaunchGroupExperts(const int32_t* experts, int64_t n_pairs, const OwnExperts& own,
                         const ExpertGroups& groups, Stream stream);
// As LaunchExpertLinear, but reads every expert's weights once per chunk; requirements of
// LaunchLinearSkinny, except for the number of rows.
Error LaunchExpertSkinny(const ExpertLinearParams& params, Stream stream);
// The same with chunks of 64 or 128 rows, on sm_90a; requirements of LaunchLinearMixed, and kBF16.
Error LaunchExpertMixed(const ExpertLinearParams& params, Stream stream);
// The same for weights of kF8Row and kF8Block, on sm_90a, and rows of x as codes in the order of
// groups.pairs: linear.x gives only their number, that of the pairs. Chunks have up to
// ChunkRowsOfCodes rows.
Error LaunchExpertBulkCodes(const ExpertLinearParams& params, const CodeRows& x,
                            int32_t num_multiprocessors, Stream stream);
// out[t] += sum over i of weights[t, i] * rows[t * top_k + i], for experts that are here. weights
// == nullptr: all are 1.
Error LaunchExpertSum(Tensor rows, const float* weights, const int32_t* experts,
                      const OwnExperts& own, int32_t top_k, Tensor out, bool adds, DType act,
                      Stream stream);
// One warp per output of a head, in any layout. `heads`: all matrices.
Error LaunchHeadLinear(const HeadLinearArgs& args, const DeviceWeight& heads, DType act,
                       Stream stream);
// The same on matrix instructions: BF16 activations and kBF16; x at 16 bytes, its stride and step
// and the heads' cols in multiples of 8.
Error LaunchHeadsTiled(const HeadLinearArgs& args, const DeviceWeight& heads, Stream stream);
// The same with the transposed matrices: rows of x have heads->rows columns, outputs of a head
// heads->cols. All of out's columns are at multiples of 16 bytes, in units of 8.
Error LaunchHeadsTurned(const HeadLinearArgs& args, const DeviceWeight& heads, Stream stream);
Error LaunchGateRows(Tensor gate_f32, Tensor x, DType act, Stream stream);

}  // namespace heddle::kernels::cuda
