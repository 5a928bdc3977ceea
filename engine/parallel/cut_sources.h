// Parts of weight sources for one rank: some of the rows of stacked matrices, or some of the
// columns of one. Nothing is read before a device packs the result, and then only these parts.
// Thread-safety: each rank has sources of its own; the files below may be shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/parallel/shard.h"
#include "kernels/tensor.h"

namespace heddle::engine {

// A rank's part of a matrix or of several that are stacked along their rows; empty: all.
struct Cut {
  std::optional<std::vector<Range>> rows;  // of the stack, in the order in which they are kept
  std::optional<Range> columns;
  // WeightSource::sum_borders of the kept columns; matrices in an order of their own columns have
  // none.
  std::vector<int64_t> sum_borders = {};
  // Empty, or an order of n rows or columns, in which `rows` or `columns` count: of the rows, each
  // n one behind the other have it. Each source has n columns, stored in this order, or a multiple
  // of n rows. Then sum_borders is empty.
  std::span<const int32_t> order = {};
};

inline Cut CutRows(std::vector<Range> rows) { return {std::move(rows), std::nullopt}; }
inline Cut CutColumns(Range columns) { return {std::nullopt, columns}; }
// `width` columns for each of the heads or channels of a range.
Cut CutColumns(Range range, std::span<const int64_t> sum_borders, int64_t width = 1);

// The features of a layer's MLP that a rank has: rows of the first matrices (`inter` of each, where
// several are stacked), and columns of the second.
Cut CutRows(std::vector<Range> rows, const LayerShare& share);
Cut CutInner(const LayerShare& share);

// The parts of `sources` that a cut keeps, stacked; none if it keeps nothing. A range of rows that
// spans two sources gives two parts. Columns of an act-order matrix (WeightSource::column_order)
// are input features in their own order: what is kept of them becomes F16, as their groups cannot
// be kept whole, unless the cut counts in the very order that they are stored in. Borrows what the
// sources borrow, and owns their sum_borders. REQUIRES: columns begin and end at borders of the
// sources' blocks.
class CutSources {
 public:
  CutSources(std::span<const kernels::WeightSource> sources, const Cut& cut);
  std::span<const kernels::WeightSource> sources() const { return parts_; }

 private:
  void AddRows(std::span<const kernels::WeightSource> sources, Range rows);
  void PickRows(std::span<const kernels::WeightSource> sources, Range rows,
                std::span<const int32_t> order);
  void CutColumnsOf(kernels::WeightSource* part, Range columns, std::span<const int32_t> order);

  std::vector<std::unique_ptr<kernels::RowReader>> readers_;
  std::vector<kernels::WeightSource> parts_;
  std::vector<int64_t> sum_borders_;
};

// The same of a vector with one value for each row of the stack; an empty one stays empty.
std::vector<float> CutValues(const std::vector<float>& values, const Cut& cut);

}  // namespace heddle::engine
