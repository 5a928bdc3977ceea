// Tables of what the distance of two positions adds to their scores (kernels::DistanceBias), for
// models with ModelSpec::distances. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/model_spec.h"
#include "engine/parallel/shard.h"

namespace heddle::engine {

// The query heads of a rank that need a table, which are the same ones in all layers; none if the
// model has no such rule or the rank no heads.
Range HeadsWithDistances(const ModelSpec& spec, const Share& share);

// The floats of a table for so many heads, with a reach of spec.max_context.
int64_t DistanceTableSize(const ModelSpec& spec, int64_t n_heads);

// The table of heads [first, first + count) of the model. `buckets`: of DistanceRule::kBuckets,
// [distance_buckets, all heads]. A distance that its vector of places ends with stands for all
// padding behind it.
std::vector<float> DistanceTable(const ModelSpec& spec, Range heads,
                                 std::span<const float> buckets);

}  // namespace heddle::engine
