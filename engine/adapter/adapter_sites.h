// The shapes of what an adapter may change: how many matrices a site has, and of which parts.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/adapter/adapter_image.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

struct SiteShape {
  int32_t members = 0;         // matrices; 0: the model lacks the site
  int64_t inputs = 0;          // columns of each; of an embedding its tokens
  std::vector<int64_t> parts;  // rows of each part
};

// The part of AdapterSite::kQkv that holds the gates of queries (AttentionSpec::gated).
inline constexpr int32_t kGatePart = 3;

// `layer`: kModelLayer for the sites of the whole model, which a layer lacks, and the other way
// round.
SiteShape ShapeOf(const ModelSpec& spec, int32_t layer, AdapterSite site);

// A part of the head: rows [first, first + count) of a part of the whole model's.
struct HeadPart {
  int32_t of_model = 0;  // index of that part
  int64_t first = 0;
  int64_t count = 0;
};
// The parts of the head that a model, or a rank's share of one, has; in order.
std::vector<HeadPart> HeadPartsOf(const ModelSpec& spec);

// Whether the site is a vector, which has a gain and a bias alone.
bool IsNorm(AdapterSite site);

}  // namespace heddle::engine
