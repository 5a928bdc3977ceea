#include <algorithm>
#include <bit>

#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// Element i of the parts' sum over the tree, in which parts that are missing have their places.
float TreeSum(std::span<const float* const> parts, int64_t i) {
  if (parts.size() == 1) return parts[0] == nullptr ? 0.0f : parts[0][i];
  const size_t half = std::bit_floor(parts.size() - 1);
  return TreeSum(parts.first(half), i) + TreeSum(parts.subspan(half), i);
}

}  // namespace

void EmbedShare(const HostBatch& batch, const Weight& table, int64_t first_row, float scale,
                Tensor out) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    const int64_t own = batch.token_ids[static_cast<size_t>(t)] - first_row;
    const bool has_row = own >= 0 && own < table.rows;
    for (int64_t i = 0; i < out.cols; ++i) {
      out.row<float>(t)[i] = has_row ? table.row(own)[i] * scale : 0.0f;
    }
  }
}

void AllReduce(const HostBatch& batch, const AllReduceArgs& args, Communicator& communicator) {
  const bool adds = args.residual.data != nullptr;
  const Tensor target = adds ? args.residual : args.out;
  const void* all[kMaxRanks];
  const int64_t bytes = target.rows * target.cols * int64_t{sizeof(float)};
  if (!communicator.Exchange(args.partial.data, bytes, bytes, all)) return;
  std::vector<const float*> parts(static_cast<size_t>(communicator.world()));
  for (size_t r = 0; r < parts.size(); ++r) parts[r] = static_cast<const float*>(all[r]);
  for (int64_t t = 0; t < target.rows; ++t) {
    float* out = target.row<float>(t);
    for (int64_t i = 0; i < target.cols; ++i) {
      const float sum =
          TreeSum(parts, t * target.cols + i) + (args.bias == nullptr ? 0.0f : args.bias[i]);
      out[i] = adds ? out[i] + sum : sum;
    }
  }
  if (args.norm.has_value()) Norm(batch, *args.norm);
}

void GatherColumns(const GatherColumnsArgs& args, Communicator& communicator) {
  const void* all[kMaxRanks];
  const int64_t row_bytes = args.part.rows * int64_t{sizeof(float)};
  if (!communicator.Exchange(args.part.data, row_bytes * args.part.cols,
                             row_bytes * args.most_columns(), all)) {
    return;
  }
  for (size_t r = 0; args.whole.data != nullptr && r + 1 < args.borders.size(); ++r) {
    const int64_t cols = args.borders[r + 1] - args.borders[r];
    for (int64_t t = 0; all[r] != nullptr && t < args.part.rows; ++t) {
      std::copy_n(static_cast<const float*>(all[r]) + t * cols, cols,
                  args.whole.row<float>(t) + args.borders[r]);
    }
  }
  communicator.Barrier();
}

}  // namespace heddle::kernels::reference
