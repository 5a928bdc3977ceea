// Launch parameters of the kernels that work row by row: embedding, norms, codes of rows. Rules for
// all launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/linear/code_rows.h"
#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/norm_adapters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// Tokens beyond the table have its first row; negative ones, which a step draws that draws nothing,
// zeros.
Error LaunchEmbed(const DeviceBatch& batch, const DeviceWeight& table, float scale, Tensor out,
                  DType act, Stream stream);
// The table's rows are those of the vocabulary from `first_row` on; other tokens have zeros.
Error LaunchEmbedShare(const DeviceBatch& batch, const DeviceWeight& table, int32_t first_row,
                       float scale, Tensor out, DType act, Stream stream);
Error LaunchAddPositions(const DeviceBatch& batch, const DeviceWeight& table, int32_t offset,
                         Tensor x, DType act, Stream stream);
Error LaunchAddTokenTypes(const DeviceBatch& batch, const DeviceWeight& table, Tensor x, DType act,
                          Stream stream);
Error LaunchGatherRows(const DeviceBatch& batch, Tensor x, Tensor out, DType act, Stream stream);
Error LaunchCopyRows(Tensor x, Tensor out, DType act, Stream stream);
// out[i] = the sum of the rows of ranges[i], F32 [n_ranges, x.cols] on the device.
Error LaunchSumRows(Tensor x, const RowRange* ranges, int32_t n_ranges, float* out, DType act,
                    Stream stream);
Error LaunchScaleLogits(Tensor logits_f32, float scale, float softcap, Stream stream);
Error LaunchSharpen(const DeviceBatch& batch, const SharpenArgs& args, DType act, Stream stream);
// segments: [x.rows], or nullptr: all are 0.
Error LaunchAddSegments(const int32_t* segments, const SegmentArgs& args, DType act, Stream stream);
// out[t * top_k + i] = weights[t, i] * x[t], [x.rows * top_k, x.cols].
Error LaunchWeighPairs(Tensor x, const float* weights, int32_t top_k, Tensor out, DType act,
                       Stream stream);
Error LaunchXielu(const XieluArgs& args, DType act, Stream stream);
// Ops::GateElements, Ops::Multiply, Ops::Scale and Ops::SquashElements.
Error LaunchGateElements(Tensor gate, Tensor x, DType act, Stream stream);
Error LaunchMultiply(Tensor factor, Tensor x, DType act, Stream stream);
Error LaunchScaleElements(Tensor x, float factor, DType act, Stream stream);
Error LaunchSquash(Squash kind, Tensor x, DType act, Stream stream);
// The ops of the same names, kernels/cuda/rows/streams.cu. REQUIRES: args.count <= kMaxStreams.
Error LaunchPredictStreams(const StreamsArgs& args, DType act, Stream stream);
Error LaunchCorrectStreams(const StreamsArgs& args, DType act, Stream stream);
Error LaunchMatchMagnitude(Tensor like, Tensor x, DType act, Stream stream);
Error LaunchSparseGate(const SparseGateArgs& args, DType act, Stream stream);
// Copies positions [0, num_tokens) of a page, keys and values.
Error LaunchCopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens,
                     Stream stream);
Error LaunchNorm(const NormArgs& args, const NormAdapters& adapters, DType act, Stream stream);

// x is BF16, aligned as for LaunchLinearSkinny. E4M3 rounds to nearest even, as integers do. A row
// with NaN or infinity gives products that are not finite.
Error LaunchQuantizeRows(Tensor x, const CodeRows& to, Stream stream);
// The same for `n` rows of codes, row i from row pairs[i] / pairs_per_row of x: for experts.
Error LaunchQuantizePairs(Tensor x, const int32_t* pairs, int32_t pairs_per_row, int64_t n,
                          const CodeRows& to, Stream stream);
// The same for the result of Norm(args), which is not written: codes are made from the F32 values.
// REQUIRES: args.x aligned as above, weight and bias to 16 bytes, no residual.
Error LaunchNormCodes(const NormArgs& args, const CodeRows& to, Stream stream);
// Writes the values of codes, rounded to BF16, to `x`, which is aligned as above.
Error LaunchRestoreRows(const CodeRows& from, Tensor x, Stream stream);

}  // namespace heddle::kernels::cuda
