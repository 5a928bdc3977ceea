#include "kernels/weight_sources.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels {
namespace {

// Far above any model's dimensions; keeps all products of sizes within int64.
constexpr int64_t kMaxDim = int64_t{1} << 28;
constexpr int64_t kMaxElements = int64_t{1} << 40;

absl::Status CheckSource(const WeightSource& source, int64_t cols) {
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StackedShape> CheckSources(std::span<const WeightSource> sources) {
  if (sources.empty()) return absl::InvalidArgumentError("a weight needs at least one source");
  StackedShape shape;
  shape.cols = sources[0].cols;
  for (const WeightSource& source : sources) {
    HEDDLE_RETURN_IF_ERROR(CheckSource(source, shape.cols));
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
