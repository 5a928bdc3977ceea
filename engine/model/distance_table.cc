#include "engine/model/distance_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace heddle::engine {
namespace {

// The slope of head h of n. Press et al. 2022 give powers of two for as many heads as a power of
// two; their code takes the others from between those of twice as many.
double AlibiSlope(int64_t h, int64_t n) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  if (h < below) return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(below));
  return std::exp2(-4.0 * static_cast<double>(2 * (h - below) + 1) / static_cast<double>(below));
}

// The row of the table for a key `distance` places behind a query, of `count` rows: the first half
// is for keys before it, half of each half for single distances, and the others reach up to 128.
// In F32, as transformers computes it (MPNet).
int32_t BucketOf(int32_t distance, int32_t count) {
  constexpr float kMostDistance = 128.0f;
  const int32_t half = count / 2;
  const int32_t exact = half / 2;
  const int32_t first = distance > 0 ? half : 0;
  const int32_t size = std::abs(distance);
  if (size < exact) return first + size;
  const auto single = static_cast<float>(exact);
  const float share = std::log(static_cast<float>(size) / single) /
                      static_cast<float>(std::log(double{kMostDistance} / exact)) *
                      static_cast<float>(half - exact);
  return first + std::min(exact + static_cast<int32_t>(share), half - 1);
}

}  // namespace

Range HeadsWithDistances(const ModelSpec& spec, const Share& share) {
  if (spec.distances == DistanceRule::kNone) return {};
  for (int32_t i = 0; i < spec.n_layers(); ++i) {
    if (share.has_layer(i)) return share.layers[static_cast<size_t>(i)].attention.heads;
  }
  return {};
}

int64_t DistanceTableSize(const ModelSpec& spec, int64_t n_heads) {
  return n_heads * kernels::DistanceBias{nullptr, spec.max_context}.stride();
}

std::vector<float> DistanceTable(const ModelSpec& spec, Range heads,
                                 std::span<const float> buckets) {
  const int64_t all = spec.layers.front().attention.n_heads;
  const int64_t stride = DistanceTableSize(spec, 1);
  const bool has_buckets = spec.distances == DistanceRule::kBuckets;
  HEDDLE_CHECK(!has_buckets || static_cast<int64_t>(buckets.size()) == all * spec.distance_buckets,
               "a table of distances has another size");
  std::vector<float> table(static_cast<size_t>(heads.count * stride));
  for (int64_t h = 0; h < heads.count; ++h) {
    const int64_t head = heads.first + h;
    const double slope = AlibiSlope(head, all);
    for (int64_t i = 0; i < stride; ++i) {
      const auto distance = static_cast<int32_t>(i - spec.max_context);
      float& value = table[static_cast<size_t>(h * stride + i)];
      if (has_buckets) {
        const int64_t row = BucketOf(distance, spec.distance_buckets);
        value = buckets[static_cast<size_t>(row * all + head)];
      } else {
        value = static_cast<float>(-slope * std::abs(distance));
      }
    }
  }
  return table;
}

}  // namespace heddle::engine
