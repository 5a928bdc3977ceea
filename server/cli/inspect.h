// `heddle inspect`: what a model is and what this machine can hold of it, without loading weights.
#pragma once

#include <string>

#include "engine/model/load.h"

namespace heddle::server {

// For people: a few aligned lines.
std::string InspectText(const std::string& path, const engine::LoadedModel& model);

// For programs: one JSON object; byte counts are plain numbers. Keys are stable.
std::string InspectJson(const std::string& path, const engine::LoadedModel& model);

}  // namespace heddle::server
