#include "kernels/cuda/linear/linear_choice.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "kernels/cuda/linear/linear_params.h"

namespace heddle::kernels::cuda {
namespace {

// Rates of an H200, per nanosecond. Bandwidth and matrix rate are measured (4.3 TB/s copied, 790
// TFLOP/s for large squares of cuBLASLt; products of some hundred rows reach nine tenths of that),
// the L2's is published for the H100, and the mixed kernel's rates are predicted in its header; at
// 64 rows dequantising takes as long as tensor cores do, at 128 half as long.
constexpr double kBandwidth = 4300;
constexpr double kL2 = 5500;
constexpr double kLibraryFlops = 700e3;
constexpr double kMixedFlops64 = 430e3;
constexpr double kMixedFlops128 = 560e3;
// Bytes that stay in the L2 between the kernel that writes them and the one that reads them.
constexpr double kKeptBytes = 24 << 20;

// Share of the bandwidth, with 32 rows of x; docs/benchmarks/gpu.md.
constexpr double kSkinnyShare = 0.6;

// Steps from 33 rows on: the rows of linear_bulk.cuh's blocks (64, 96, 128, 160, 208) and multiples
// of them; tiles of linear_mixed.cuh and of cuBLASLt have 64, 128 or 256.
constexpr int32_t kRowSteps[] = {1,   2,   4,   8,   16,  32,  64,  96,  128,
                                 160, 208, 256, 320, 416, 512, 640, 832, 1024};
static_assert(std::has_single_bit(static_cast<uint32_t>(*std::rbegin(kRowSteps))));

double BytesOf(const DeviceWeight& weight) {
  return static_cast<double>(weight.rows) *
         static_cast<double>(weight.row_bytes + 2 * weight.scales_stride);
}

double Elements(const DeviceWeight& weight) {
  return static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
}

double Parts(int64_t n, int64_t of) {
  const int64_t parts = (n + of - 1) / of;
  return static_cast<double>(parts);
}

}  // namespace

double PredictMixedNs(const DeviceWeight& weight, int64_t n) {
  constexpr double kWeightRows = 256;  // per block, see linear_mixed.cuh
  const int64_t x_rows = n <= 64 ? 64 : 128;
  const double codes = BytesOf(weight);
  const double x = 2 * static_cast<double>(n) * static_cast<double>(weight.cols);
  const double from_l2 =
      Parts(n, x_rows) * codes + static_cast<double>(weight.rows) / kWeightRows * x;
  const double flops = 2 * Parts(n, x_rows) * static_cast<double>(x_rows) * Elements(weight);
  return std::max(
      {codes / kBandwidth, from_l2 / kL2, flops / (x_rows == 64 ? kMixedFlops64 : kMixedFlops128)});
}

double PredictDequantizedNs(const DeviceWeight& weight, int64_t n) {
  const double wide = 2 * Elements(weight);
  const double rate = wide <= kKeptBytes ? kL2 : kBandwidth;
  return BytesOf(weight) / kBandwidth + wide / rate +
         std::max(wide / rate, 2 * static_cast<double>(n) * Elements(weight) / kLibraryFlops);
}

const char* NameOf(LinearWay way) {
  switch (way) {
    case LinearWay::kPlain:
      return "plain";
    case LinearWay::kFewRows:
      return "few rows at a time";
    case LinearWay::kMixed:
      return "mixed";
    case LinearWay::kBulk:
      return "bulk copies";
    case LinearWay::kTiled:
      return "tiled";
    case LinearWay::kLibrary:
      return "library";
    case LinearWay::kByCodes:
      return "by codes";
    case LinearWay::kBulkCodes:
      return "bulk copies of codes";
    case LinearWay::kDequantized:
      return "dequantised in memory";
  }
  return "";
}

std::span<const int32_t> RowSteps() { return kRowSteps; }

int64_t RowStepFrom(int64_t n) {
  const auto* next = std::lower_bound(std::begin(kRowSteps), std::end(kRowSteps), n);
  if (next != std::end(kRowSteps)) return *next;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

int64_t RowStepBelow(int64_t step) {
  const auto* at = std::lower_bound(std::begin(kRowSteps), std::end(kRowSteps), step);
  if (at == std::end(kRowSteps)) return step / 2;
  return at == std::begin(kRowSteps) ? 0 : *std::prev(at);
}

int64_t MostBulkCodes(const DeviceWeight& weight) {
  return 2 * (TraitsOf(weight.layout).is_tiled ? kBulkTiledRows : kBulkBlockRows);
}

LinearWay ChooseManyRows(const DeviceWeight& weight, int64_t n, bool has_hopper_code) {
  if (has_hopper_code) {
    return PredictMixedNs(weight, n) <= PredictDequantizedNs(weight, n) ? LinearWay::kMixed
                                                                        : LinearWay::kDequantized;
  }
  // Older devices have less of everything, in similar proportions. While products of few rows are
  // bound by memory, bytes decide: codes once per pass, or codes and BF16 out and in again.
  const double passes = Parts(n, kSkinnyRows) * BytesOf(weight) / kSkinnyShare;
  return passes <= BytesOf(weight) + 4 * Elements(weight) ? LinearWay::kFewRows
                                                          : LinearWay::kDequantized;
}

// A chunk costs about the time of its weights up to 32 rows, or 64 rows of the mixed kernel, so
// chunks should be large enough that few experts need two. Loads are uneven: the mean is less than
// what the largest get.
int32_t ChooseChunkRows(int64_t n_pairs, int64_t n_experts, bool has_hopper_code) {
  if (n_pairs <= 8 * n_experts) return 8;
  if (!has_hopper_code || n_pairs <= 24 * n_experts) return kSkinnyRows;
  return n_pairs <= 64 * n_experts ? 64 : 128;
}

bool ExpertsTakeCodes(int64_t n_pairs, int64_t n_experts) { return n_pairs > 64 * n_experts; }

int32_t ChunkRowsOfCodes(WeightLayout layout) {
  return TraitsOf(layout).is_tiled ? kBulkTiledRows : 128;
}

}  // namespace heddle::kernels::cuda
