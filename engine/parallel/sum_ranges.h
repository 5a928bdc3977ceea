// The ranges that the inputs of a product are summed in which a group of ranks cuts: halves of
// halves of halves of them, each in whole units. Their sums are added as a binary tree
// (kernels::WeightSource::sum_borders). With Layout::invariant, groups of 1, 2, 4 and 8 ranks have
// a part of the tree each, and AllReduce adds the rest of it, so that all of them have the same
// sums, bit for bit (docs/decisions/0124). Without it there are no ranges.
//
// Unit: heads, channels or features. Source: arXiv 2511.17826 (tree-based invariant kernels).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/parallel/shard.h"

namespace heddle::engine {

inline constexpr int32_t kSumRanges = 8;

// Some are empty if there are too few units; the first half of an odd number has one more.
// REQUIRES: total >= 0, unit >= 1.
std::vector<Range> SumRanges(int64_t total, int64_t unit);

struct HeadUnits {
  int64_t group;  // query heads of a KV head
  int64_t block;  // heads whose outputs are whole blocks of the product behind them
  bool may_cut;   // groups, so that several ranges read a KV head
};

// The same for query heads: cut between groups while there are several of them, and then within
// one. So a range has whole groups, or a part of one.
std::vector<Range> SumRangesOfHeads(int64_t n_heads, const HeadUnits& units);

// The shares of ranks: the inputs of each, and the borders of its own ranges, counted from its
// first input; empty where it has no ranges.
struct Division {
  std::vector<Range> ranks;
  std::vector<std::vector<int64_t>> sum_borders;
};

// REQUIRES: `world` divides the number of ranges.
Division DivideRanges(std::span<const Range> ranges, size_t world);

}  // namespace heddle::engine
