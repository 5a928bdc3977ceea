#include "kernels/weight_sources.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels {
namespace {

// Far above any model's dimensions; keeps all products of sizes within int64.
constexpr int64_t kMaxDim = int64_t{1} << 28;
constexpr int64_t kMaxElements = int64_t{1} << 40;

// Whether products can be summed in the ranges that the source wants, and those of `first` are the
// same.
bool HasSumBorders(const WeightSource& source, const WeightSource& first) {
  const std::span<const int64_t> borders = source.sum_borders;
  if (!std::equal(borders.begin(), borders.end(), first.sum_borders.begin(),
                  first.sum_borders.end())) {
    return false;
  }
  if (borders.empty()) return true;
  const int32_t block = Info(source.dtype).block_elements;
  return borders.size() > 1 && std::has_single_bit(borders.size() - 1) && borders.front() == 0 &&
         borders.back() == source.cols && source.column_order.empty() &&
         std::is_sorted(borders.begin(), borders.end()) &&
         std::all_of(borders.begin(), borders.end(),
                     [block](int64_t border) { return border % block == 0; });
}

absl::Status CheckSource(const WeightSource& source, const WeightSource& first) {
  const int64_t cols = first.cols;
  auto fail = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight '", source.name, "' [", source.rows, ", ", source.cols, "] ", why...));
  };
  if (source.data == nullptr && source.reader == nullptr) return fail("has no data");
  if (source.rows < 1 || source.cols < 1 || source.rows > kMaxDim || source.cols > kMaxDim ||
      source.rows > kMaxElements / source.cols) {
    return fail("has an impossible shape");
  }
  if (source.cols != cols) return fail("is stacked with a matrix of ", cols, " columns");
  int32_t block = Info(source.dtype).block_elements;
  if (cols % block != 0) {
    return fail("of type ", std::string(Info(source.dtype).name), " needs columns in multiples of ",
                block);
  }
  if (!source.column_order.empty() &&
      source.column_order.size() != static_cast<size_t>(source.cols)) {
    return fail("has an order of ", source.column_order.size(), " columns");
  }
  if (!HasSumBorders(source, first)) return fail("has sum_borders that do not divide its columns");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StackedShape> CheckSources(std::span<const WeightSource> sources) {
  if (sources.empty()) return absl::InvalidArgumentError("a weight needs at least one source");
  StackedShape shape;
  shape.cols = sources[0].cols;
  for (const WeightSource& source : sources) {
    HEDDLE_RETURN_IF_ERROR(CheckSource(source, sources[0]));
    shape.rows += source.rows;
  }
  return shape;
}

absl::Status CheckStack(std::span<const WeightSource> sources, int32_t count) {
  if (count < 1 || sources.empty() || sources.size() % static_cast<size_t>(count) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a stack of ", count, " matrices cannot be made of ", sources.size(), " sources"));
  }
  const size_t each = sources.size() / static_cast<size_t>(count);
  for (size_t i = each; i < sources.size(); ++i) {
    const WeightSource& first = sources[i % each];
    if (sources[i].rows == first.rows) continue;
    return absl::InvalidArgumentError(absl::StrCat("weight '", sources[i].name, "' has ",
                                                   sources[i].rows, " rows, '", first.name,
                                                   "' of the same stack ", first.rows));
  }
  return absl::OkStatus();
}

const uint8_t* SourceRows(const WeightSource& source, int64_t begin, int64_t count,
                          std::vector<uint8_t>* buffer) {
  const int64_t row_bytes = RowBytes(source.dtype, source.cols);
  if (source.data != nullptr) return static_cast<const uint8_t*>(source.data) + begin * row_bytes;
  buffer->resize(static_cast<size_t>(count * row_bytes));
  source.reader->ReadRows(source.first_row + begin, count, buffer->data());
  return buffer->data();
}

void DecodeSourceRow(const WeightSource& source, const uint8_t* row, float* out) {
  if (source.column_order.empty()) return DequantizeRow(source.dtype, row, source.cols, out);
  std::vector<float> stored(static_cast<size_t>(source.cols));
  DequantizeRow(source.dtype, row, source.cols, stored.data());
  for (size_t c = 0; c < stored.size(); ++c) out[source.column_order[c]] = stored[c];
}

WeightSource PartOf(const WeightSource& source, int64_t begin, int64_t count) {
  WeightSource part = source;
  part.rows = count;
  if (source.data != nullptr) {
    part.data =
        static_cast<const uint8_t*>(source.data) + begin * RowBytes(source.dtype, source.cols);
  } else {
    part.first_row += begin;
  }
  return part;
}

}  // namespace heddle::kernels
