#include "kernels/cpu/rank_ops.h"

#include <algorithm>

#include "base/check.h"

namespace heddle::kernels::cpu {
namespace {

// Parts are added in two rounds from this size and this number of ranks on. With two ranks one
// round reads as much and copies nothing: 0.85 ms against 1.6 ms for 4 MiB
// (docs/benchmarks/parallel.md).
constexpr int64_t kTwoRoundBytes = 256 * 1024;
constexpr int32_t kTwoRoundRanks = 4;

// Approximate, to decide how many threads to wake: parts come from other processors' caches.
constexpr double kNsPerSummedElement = 0.3;
constexpr double kNsPerCopiedElement = 0.15;

}  // namespace

void RankOps::SumRow(const Sums& sums, int64_t row) const {
  const int64_t dim = sums.target.cols;
  const float* parts[kMaxRanks];
  for (int32_t i = 0; i < sums.num_parts; ++i) {
    parts[i] = sums.parts[i] == nullptr ? zeros_.data() : sums.parts[i] + row * dim;
  }
  rows_.sum_parts({.parts = parts,
                   .num_parts = sums.num_parts,
                   .bias = sums.args.bias,
                   .add = sums.args.residual.data != nullptr,
                   .dim = dim,
                   .out = sums.target.row<float>(row)});
}

void RankOps::BeginAllReduce(const AllReduceArgs& args) {
  if (sent_.has_value()) return sent_->BeginAllReduce(args);
  const Tensor target = args.residual.data != nullptr ? args.residual : args.out;
  const int64_t bytes = target.rows * target.cols * int64_t{sizeof(float)};
  static_cast<void>(communicator_->BeginExchange(args.partial.data, bytes, bytes));
}

void RankOps::AllReduce(const AllReduceArgs& args, bool is_begun, const Finish& finish) {
  if (sent_.has_value()) return sent_->AllReduce(args, is_begun, finish);
  const Tensor target = args.residual.data != nullptr ? args.residual : args.out;
  HEDDLE_CHECK(args.partial.data == nullptr || args.partial.stride == target.cols,
               "all-reduce: the partial sums are not dense");
  const int64_t bytes = target.rows * target.cols * int64_t{sizeof(float)};
  const void* all[kMaxRanks];
  const bool are_there = is_begun ? communicator_->EndExchange(all)
                                  : communicator_->Exchange(args.partial.data, bytes, bytes, all);
  if (!are_there) return;
  Sums sums{.parts = {}, .num_parts = 0, .args = args, .target = target};
  const int32_t world = communicator_->world();
  for (int32_t r = 0; r < world; ++r) {
    sums.parts[r] = static_cast<const float*>(all[r]);
    if (all[r] != nullptr) sums.num_parts = world;
  }
  if (static_cast<int64_t>(zeros_.size()) < target.cols) {
    zeros_.resize(static_cast<size_t>(target.cols));
  }
  const bool in_two = bytes >= kTwoRoundBytes && world >= kTwoRoundRanks && target.rows >= world;
  const int32_t rank = communicator_->rank();
  const int64_t begin = in_two ? target.rows * rank / world : 0;
  const int64_t end = in_two ? target.rows * (rank + 1) / world : target.rows;
  const double cost = kNsPerSummedElement * static_cast<double>(target.cols * sums.num_parts);
  pool_.ForRange(end - begin, cost, [&](int64_t first, int64_t last, int32_t thread) {
    for (int64_t t = begin + first; t < begin + last; ++t) {
      SumRow(sums, t);
      finish(t, thread);
    }
  });
  if (!in_two || !communicator_->Exchange(target.data, bytes, bytes, all)) return;
  const double copy_cost = kNsPerCopiedElement * static_cast<double>(target.cols);
  pool_.ForRange(target.rows, copy_cost, [&](int64_t first, int64_t last, int32_t thread) {
    for (int64_t t = first; t < last; ++t) {
      if (t >= begin && t < end) continue;
      // The rank whose share [rows * r / world, rows * (r + 1) / world) holds row t.
      const int64_t owner = ((t + 1) * world - 1) / target.rows;
      const float* from = static_cast<const float*>(all[owner]) + t * target.stride;
      std::copy_n(from, target.cols, target.row<float>(t));
      finish(t, thread);
    }
  });
  communicator_->Barrier();
}

void RankOps::GatherColumns(const GatherColumnsArgs& args) {
  const int64_t n = args.part.rows;
  const int32_t world = communicator_->world();
  HEDDLE_CHECK(static_cast<int32_t>(args.borders.size()) == world + 1,
               "gather: a border for each rank");
  HEDDLE_CHECK(args.part.data == nullptr || args.part.stride == args.part.cols,
               "gather: the part is not dense");
  const void* all[kMaxRanks];
  const int64_t column_bytes = n * int64_t{sizeof(float)};
  const int64_t bytes = column_bytes * args.part.cols;
  const int64_t most_bytes = column_bytes * args.most_columns();
  const bool are_there =
      args.root >= 0 ? communicator_->Gather(args.part.data, bytes, most_bytes, args.root, all)
                     : communicator_->Exchange(args.part.data, bytes, most_bytes, all);
  if (!are_there) return;
  if (args.whole.data != nullptr) {
    pool_.ForRange(n * world, kNsPerCopiedElement * static_cast<double>(args.whole.cols) / world,
                   [&](int64_t first, int64_t last, int32_t) {
                     for (int64_t i = first; i < last; ++i) {
                       const int64_t t = i / world;
                       const auto r = static_cast<size_t>(i % world);
                       const int64_t cols = args.borders[r + 1] - args.borders[r];
                       if (all[r] == nullptr) continue;
                       std::copy_n(static_cast<const float*>(all[r]) + t * cols, cols,
                                   args.whole.row<float>(t) + args.borders[r]);
                     }
                   });
  }
  // Until others have read this rank's part, if they read it here.
  if (communicator_->shares_memory()) communicator_->Barrier();
}

}  // namespace heddle::kernels::cpu
