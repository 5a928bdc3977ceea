#include "kernels/weight_sources.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels {
namespace {

// No matrix of a model is near this; keeps all products of sizes within int64.
constexpr int64_t kMaxDim = int64_t{1} << 28;
constexpr int64_t kMaxElements = int64_t{1} << 40;

absl::Status CheckSource(const WeightSource& source, int64_t cols) {
  auto fail = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight '", source.name, "' [", source.rows, ", ", source.cols, "] ", why...));
  };
  if (source.data == nullptr) return fail("has no data");
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

}  // namespace heddle::kernels
