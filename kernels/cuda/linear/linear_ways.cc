#include "kernels/cuda/linear/linear_ways.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace heddle::kernels::cuda {
namespace {

// A way is preferred to the predicted one if it takes at most this share of its time.
constexpr double kClearlyFaster = 0.97;

const char* NameOf(WeightLayout layout) {
  switch (layout) {
    case WeightLayout::kF32:
      return "f32";
    case WeightLayout::kF16:
      return "f16";
    case WeightLayout::kBF16:
      return "bf16";
    case WeightLayout::kInt8:
      return "8-bit";
    case WeightLayout::kInt8Offset:
      return "8-bit with offsets";
    case WeightLayout::kInt8Fine:
      return "8-bit fine";
    case WeightLayout::kInt8FineOffset:
      return "8-bit fine with offsets";
    case WeightLayout::kInt8Row:
      return "8-bit per row";
    case WeightLayout::kF8:
      return "fp8";
    case WeightLayout::kF8Row:
      return "fp8 per row";
    case WeightLayout::kF8Block:
      return "fp8 per tile";
    case WeightLayout::kInt4:
      return "4-bit";
    case WeightLayout::kInt4Offset:
      return "4-bit with offsets";
    case WeightLayout::kTable4:
      return "4-bit by table";
    case WeightLayout::kTable4Fine:
      return "4-bit fine by table";
  }
  return "";
}

std::string TextOf(const LinearWays::Timed& timed) {
  const std::string name(NameOf(timed.way));
  if (timed.ns < 0) return absl::StrCat(name, " does not run");
  return absl::StrFormat("%s %.1f us", name, static_cast<double>(timed.ns) / 1e3);
}

}  // namespace

LinearWays::Shape LinearWays::ShapeOf(const LinearParams& params) {
  return {.layout = params.weight.layout,
          .rows = params.weight.rows,
          .cols = params.weight.cols,
          .n = params.x.rows,
          .gated = params.epilogue == Epilogue::kGated,
          .out_f32 = params.out_f32};
}

LinearWays::Key LinearWays::KeyOf(const Shape& shape) {
  return {shape.layout, shape.rows, shape.cols, shape.gated, shape.out_f32, RowStepFrom(shape.n)};
}

std::optional<LinearWay> LinearWays::Fastest(const Shape& shape) const {
  const auto found = met_.find(KeyOf(shape));
  if (found == met_.end()) return std::nullopt;
  return found->second.front().way;
}

void LinearWays::Learn(const Shape& shape, std::vector<Timed> timed) {
  const auto ran = [](const Timed& t) { return t.ns >= 0; };
  HEDDLE_CHECK(std::any_of(timed.begin(), timed.end(), ran), "no way of a product was timed");
  const Timed predicted = timed.front();
  std::stable_sort(timed.begin(), timed.end(), [&](const Timed& a, const Timed& b) {
    return ran(a) != ran(b) ? ran(a) : a.ns < b.ns;
  });
  const auto limit = static_cast<int64_t>(static_cast<double>(predicted.ns) * kClearlyFaster);
  if (ran(predicted) && timed.front().ns > limit) {
    const auto at = std::find_if(timed.begin(), timed.end(),
                                 [&](const Timed& one) { return one.way == predicted.way; });
    std::rotate(timed.begin(), at, at + 1);
  }
  met_.emplace(KeyOf(shape), std::move(timed));
}

std::vector<std::string> LinearWays::Describe() const {
  std::vector<std::string> lines;
  for (const auto& [key, timed] : met_) {
    const auto& [layout, rows, cols, gated, out_f32, most] = key;
    const auto text = [](std::string* out, const Timed& one) { out->append(TextOf(one)); };
    lines.push_back(absl::StrFormat(
        "%s %d x %d%s%s, %d to %d rows: %s", NameOf(layout), rows, cols, gated ? " gated" : "",
        out_f32 ? " to f32" : "", RowStepBelow(most) + 1, most, absl::StrJoin(timed, ", ", text)));
  }
  return lines;
}

}  // namespace heddle::kernels::cuda
