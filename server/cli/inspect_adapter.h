// `heddle inspect` of a LoRA adapter: what its files say, and, with a base, what it takes there.
#pragma once

#include <optional>
#include <string>

#include "engine/adapter/describe_adapter.h"

namespace heddle::server {

// An adapter on the base that it was checked against.
struct AdapterOnBase {
  std::string base;  // path of the model
  std::string modules;
  int64_t bytes = 0;   // of its image
  int32_t pages = 0;   // of the pool
  int64_t tokens = 0;  // whose keys and values would take as many
};

std::string InspectAdapterText(const std::string& path,
                               const engine::AdapterDescription& description,
                               const std::optional<AdapterOnBase>& on_base);

// One JSON object; byte counts are plain numbers. Keys are stable.
std::string InspectAdapterJson(const std::string& path,
                               const engine::AdapterDescription& description,
                               const std::optional<AdapterOnBase>& on_base);

}  // namespace heddle::server
