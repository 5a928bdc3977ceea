// Descriptions of configurations that tests write or change.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"

namespace heddle::test {

// `config` with another value under one key.
inline nlohmann::json With(nlohmann::json config, const std::string& key,
                           const nlohmann::json& value) {
  config[key] = value;
  return config;
}

inline absl::StatusOr<engine::ModelDescription> DescribeJson(
    const nlohmann::json& config, const nlohmann::json& generation = nlohmann::json::object()) {
  return engine::DescribeConfig(config, generation, "m/config.json");
}

}  // namespace heddle::test
