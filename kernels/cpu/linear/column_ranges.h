// The ranges of a weight's columns that are summed apart (WeightSource::sum_borders), in the order
// in which Linear computes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::kernels::cpu {

struct ColumnRange {
  int64_t begin;
  int64_t cols;  // > 0
  // Sums wait in a stack for the other half of their part of the tree: how many are joined behind
  // this range, each with the one before it.
  int32_t joins;
};

// The ranges that are not empty; without borders, one of all columns.
std::vector<ColumnRange> ColumnRangesOf(std::span<const int64_t> borders, int64_t cols);

// The most sums that there are at a time.
int32_t MostSums(std::span<const ColumnRange> ranges);

}  // namespace heddle::kernels::cpu
