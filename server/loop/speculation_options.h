// Drafters of the engine loop, and their limits. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "engine/draft/combined_drafter.h"

namespace heddle::server {

// A drafter with weights, which runs beside the model.
struct NetworkOptions {
  // kAny: one that lies in the model's folder, if one does.
  enum class Kind : uint8_t { kNone, kDraftModel, kMedusa, kEagle, kMtp, kAny };
  Kind kind = Kind::kNone;
  std::string path;  // not for kMtp and kAny
};

struct SpeculationOptions {
  // False: no sequence is drafted, also where its request has a prediction.
  bool on = false;
  engine::DrafterOptions drafters;  // beside the one that follows predictions
  NetworkOptions network;
  int32_t max_tokens = 16;  // of a draft, per sequence and step
};

}  // namespace heddle::server
