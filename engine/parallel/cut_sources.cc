#include "engine/parallel/cut_sources.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "kernels/row_picker.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

// Copies whole blocks out of the source's rows.
class ColumnReader final : public kernels::RowReader {
 public:
  ColumnReader(WeightSource source, Range columns)
      : source_(std::move(source)),
        row_bytes_(kernels::RowBytes(source_.dtype, source_.cols)),
        first_byte_(kernels::RowBytes(source_.dtype, columns.first)),
        bytes_(kernels::RowBytes(source_.dtype, columns.count)) {}

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    std::vector<uint8_t> buffer;
    const uint8_t* rows = kernels::SourceRows(source_, begin, count, &buffer);
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(out + r * bytes_, rows + r * row_bytes_ + first_byte_,
                  static_cast<size_t>(bytes_));
    }
  }

 private:
  const WeightSource source_;
  const int64_t row_bytes_;
  const int64_t first_byte_;
  const int64_t bytes_;
};

// Decodes the source's rows, and keeps the input features of a range.
class FeatureReader final : public kernels::RowReader {
 public:
  FeatureReader(WeightSource source, Range features)
      : source_(std::move(source)), features_(features) {}

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    std::vector<uint8_t> buffer;
    std::vector<float> values(static_cast<size_t>(source_.cols));
    const uint8_t* rows = kernels::SourceRows(source_, begin, count, &buffer);
    const int64_t row_bytes = kernels::RowBytes(source_.dtype, source_.cols);
    for (int64_t r = 0; r < count; ++r) {
      kernels::DecodeSourceRow(source_, rows + r * row_bytes, values.data());
      for (int64_t c = 0; c < features_.count; ++c, out += 2) {
        const uint16_t half = kernels::F32ToF16(values[static_cast<size_t>(features_.first + c)]);
        std::memcpy(out, &half, sizeof(half));
      }
    }
  }

 private:
  const WeightSource source_;
  const Range features_;
};

// Keeps single rows. Codes that lie transposed are read slowly row by row: they are read in blocks,
// each once, by whoever first needs a row of it, and the kept rows stay in memory as long as the
// reader. Of a block those rows alone are read, if the source can pick, so that ranks together read
// each row once.
class PickedReader final : public kernels::RowReader {
 public:
  PickedReader(WeightSource source, std::vector<int32_t> rows)
      : source_(std::move(source)),
        picker_(source_.data == nullptr ? dynamic_cast<const kernels::RowPicker*>(source_.reader)
                                        : nullptr),
        rows_(std::move(rows)),
        row_bytes_(kernels::RowBytes(source_.dtype, source_.cols)),
        places_(static_cast<size_t>(source_.rows), kNowhere),
        n_blocks_((source_.rows + kBlockRows - 1) / kBlockRows),
        are_read_(std::make_unique<std::once_flag[]>(static_cast<size_t>(n_blocks_))),
        kept_(std::make_unique_for_overwrite<uint8_t[]>(rows_.size() *
                                                        static_cast<size_t>(row_bytes_))) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      places_[static_cast<size_t>(rows_[i])] = static_cast<int64_t>(i);
    }
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    std::vector<bool> needed(static_cast<size_t>(n_blocks_));
    for (int64_t i = begin; i < begin + count; ++i) {
      needed[static_cast<size_t>(rows_[static_cast<size_t>(i)] / kBlockRows)] = true;
    }
    // Threads begin at different blocks, of which all of them need most.
    const int64_t first = begin * n_blocks_ / static_cast<int64_t>(rows_.size());
    for (int64_t i = 0; i < n_blocks_; ++i) {
      const int64_t block = (first + i) % n_blocks_;
      if (!needed[static_cast<size_t>(block)]) continue;
      std::call_once(are_read_[static_cast<size_t>(block)], [this, block] { ReadBlock(block); });
    }
    std::memcpy(out, kept_.get() + begin * row_bytes_, static_cast<size_t>(count * row_bytes_));
  }

 private:
  static constexpr int64_t kNowhere = -1;
  static constexpr int64_t kBlockRows = 128;

  void ReadBlock(int64_t block) const {
    const int64_t begin = block * kBlockRows;
    const int64_t count = std::min(kBlockRows, source_.rows - begin);
    if (picker_ != nullptr) return PickBlock(begin, count);
    std::vector<uint8_t> buffer;
    const uint8_t* rows = kernels::SourceRows(source_, begin, count, &buffer);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t place = places_[static_cast<size_t>(begin + r)];
      if (place == kNowhere) continue;
      std::memcpy(kept_.get() + place * row_bytes_, rows + r * row_bytes_,
                  static_cast<size_t>(row_bytes_));
    }
  }

  void PickBlock(int64_t begin, int64_t count) const {
    std::vector<int32_t> picked;
    picked.reserve(static_cast<size_t>(count));
    for (int64_t row = begin; row < begin + count; ++row) {
      if (places_[static_cast<size_t>(row)] == kNowhere) continue;
      picked.push_back(static_cast<int32_t>(source_.first_row + row));
    }
    std::vector<uint8_t> rows(picked.size() * static_cast<size_t>(row_bytes_));
    picker_->PickRows(picked, rows.data());
    for (size_t i = 0; i < picked.size(); ++i) {
      const int64_t place = places_[static_cast<size_t>(picked[i] - source_.first_row)];
      std::memcpy(kept_.get() + place * row_bytes_,
                  rows.data() + i * static_cast<size_t>(row_bytes_),
                  static_cast<size_t>(row_bytes_));
    }
  }

  const WeightSource source_;
  const kernels::RowPicker* const picker_;  // of the source; nullptr: it picks no rows
  const std::vector<int32_t> rows_;
  const int64_t row_bytes_;
  std::vector<int64_t> places_;  // [source_.rows]
  const int64_t n_blocks_;
  const std::unique_ptr<std::once_flag[]> are_read_;  // [n_blocks_]
  const std::unique_ptr<uint8_t[]> kept_;             // [rows_, row_bytes_]
};

// The row, or column, at a place of an order that repeats itself.
int64_t InOrder(std::span<const int32_t> order, int64_t place) {
  if (order.empty()) return place;
  const auto size = static_cast<int64_t>(order.size());
  return place / size * size + order[static_cast<size_t>(place % size)];
}

std::span<const int32_t> OrderOf(const LayerShare& share) {
  if (share.inner_order == nullptr) return {};
  return *share.inner_order;
}

}  // namespace

Cut CutColumns(Range range, std::span<const int64_t> sum_borders, int64_t width) {
  Cut cut = CutColumns({range.first * width, range.count * width});
  for (const int64_t border : sum_borders) cut.sum_borders.push_back(border * width);
  return cut;
}

Cut CutRows(std::vector<Range> rows, const LayerShare& share) {
  Cut cut = CutRows(std::move(rows));
  cut.order = OrderOf(share);
  return cut;
}

Cut CutInner(const LayerShare& share) {
  if (share.inner_order == nullptr) return CutColumns(share.inner, share.inner_sum_borders);
  Cut cut = CutColumns(share.inner);
  cut.order = OrderOf(share);
  return cut;
}

CutSources::CutSources(std::span<const WeightSource> sources, const Cut& cut)
    : sum_borders_(cut.sum_borders) {
  if (cut.rows.has_value()) {
    for (const Range& range : *cut.rows) {
      if (cut.order.empty()) {
        AddRows(sources, range);
      } else {
        PickRows(sources, range, cut.order);
      }
    }
  } else {
    parts_.assign(sources.begin(), sources.end());
  }
  if (!cut.columns.has_value()) return;
  if (cut.columns->count == 0) parts_.clear();
  for (WeightSource& part : parts_) CutColumnsOf(&part, *cut.columns, cut.order);
}

void CutSources::CutColumnsOf(WeightSource* part, Range columns, std::span<const int32_t> order) {
  if (!order.empty()) {
    HEDDLE_CHECK(std::equal(order.begin(), order.end(), part->column_order.begin(),
                            part->column_order.end()),
                 "columns are cut in an order that they are not stored in");
    part->column_order = {};
  }
  const bool is_whole = columns == Range{0, part->cols};
  const bool by_feature = !part->column_order.empty();
  if (!is_whole || !by_feature) part->sum_borders = sum_borders_;
  if (is_whole) return;
  if (by_feature) {
    readers_.push_back(std::make_unique<FeatureReader>(*part, columns));
    part->dtype = DType::kF16;
    part->column_order = {};
    part->takes_int8_x = false;
  } else {
    readers_.push_back(std::make_unique<ColumnReader>(*part, columns));
  }
  part->data = nullptr;
  part->reader = readers_.back().get();
  part->first_row = 0;
  part->cols = columns.count;
}

void CutSources::PickRows(std::span<const WeightSource> sources, Range rows,
                          std::span<const int32_t> order) {
  int64_t begin = 0;  // of the source, in the stack
  for (const WeightSource& source : sources) {
    std::vector<int32_t> picked;
    for (int64_t p = rows.first; p < rows.end(); ++p) {
      const int64_t row = InOrder(order, p) - begin;
      if (row >= 0 && row < source.rows) picked.push_back(static_cast<int32_t>(row));
    }
    begin += source.rows;
    if (picked.empty()) continue;
    WeightSource& part = parts_.emplace_back(source);
    part.rows = static_cast<int64_t>(picked.size());
    readers_.push_back(std::make_unique<PickedReader>(source, std::move(picked)));
    part.data = nullptr;
    part.reader = readers_.back().get();
    part.first_row = 0;
  }
  HEDDLE_CHECK(rows.end() <= begin, "a cut keeps rows that the matrices have not");
}

void CutSources::AddRows(std::span<const WeightSource> sources, Range rows) {
  int64_t begin = 0;  // of the source, in the stack
  for (const WeightSource& source : sources) {
    const int64_t first = std::max(rows.first, begin);
    const int64_t last = std::min(rows.end(), begin + source.rows);
    if (first < last) parts_.push_back(kernels::PartOf(source, first - begin, last - first));
    begin += source.rows;
  }
  HEDDLE_CHECK(rows.end() <= begin, "a cut keeps rows that the matrices have not");
}

std::vector<float> CutValues(const std::vector<float>& values, const Cut& cut) {
  if (values.empty() || !cut.rows.has_value()) return values;
  std::vector<float> kept;
  for (const Range& range : *cut.rows) {
    kept.reserve(kept.size() + static_cast<size_t>(range.count));
    for (int64_t row = range.first; row < range.end(); ++row) {
      kept.push_back(values[static_cast<size_t>(InOrder(cut.order, row))]);
    }
  }
  return kept;
}

}  // namespace heddle::engine
