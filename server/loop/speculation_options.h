// What the engine loop drafts with. Plain data.
#pragma once

#include <cstdint>

#include "engine/draft/combined_drafter.h"

namespace heddle::server {

struct SpeculationOptions {
  // False: no sequence is drafted, also where its request has a prediction.
  bool on = false;
  engine::DrafterOptions drafters;  // beside the one that follows predictions
  int32_t max_tokens = 16;          // of a draft, per sequence and step
};

}  // namespace heddle::server
