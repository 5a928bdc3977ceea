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

// `layer`: kModelLayer for the sites of the whole model, which a layer lacks, and the other way
// round.
SiteShape ShapeOf(const ModelSpec& spec, int32_t layer, AdapterSite site);

// Whether the site is a vector, which has a gain and a bias alone.
bool IsNorm(AdapterSite site);

}  // namespace heddle::engine
