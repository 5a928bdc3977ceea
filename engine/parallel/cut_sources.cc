#include "engine/parallel/cut_sources.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
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

}  // namespace

Cut CutColumns(Range range, std::span<const int64_t> sum_borders, int64_t width) {
  Cut cut = CutColumns({range.first * width, range.count * width});
  for (const int64_t border : sum_borders) cut.sum_borders.push_back(border * width);
  return cut;
}

CutSources::CutSources(std::span<const WeightSource> sources, const Cut& cut)
    : sum_borders_(cut.sum_borders) {
  if (cut.rows.has_value()) {
    for (const Range& range : *cut.rows) AddRows(sources, range);
  } else {
    parts_.assign(sources.begin(), sources.end());
  }
  if (!cut.columns.has_value()) return;
  const Range columns = *cut.columns;
  if (columns.count == 0) parts_.clear();
  for (WeightSource& part : parts_) {
    const bool is_whole = columns == Range{0, part.cols};
    const bool by_feature = !part.column_order.empty();
    if (!is_whole || !by_feature) part.sum_borders = sum_borders_;
    if (is_whole) continue;
    if (by_feature) {
      readers_.push_back(std::make_unique<FeatureReader>(part, columns));
      part.dtype = DType::kF16;
      part.column_order = {};
      part.takes_int8_x = false;
    } else {
      readers_.push_back(std::make_unique<ColumnReader>(part, columns));
    }
    part.data = nullptr;
    part.reader = readers_.back().get();
    part.first_row = 0;
    part.cols = columns.count;
  }
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
    const auto part = std::span(values).subspan(static_cast<size_t>(range.first),
                                                static_cast<size_t>(range.count));
    kept.insert(kept.end(), part.begin(), part.end());
  }
  return kept;
}

}  // namespace heddle::engine
