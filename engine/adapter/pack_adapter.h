// Lays the factors of an adapter out in pages, converted to the type that the kernels read. Private
// to engine/adapter.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/adapter_places.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::engine {

struct PlacedModule {
  std::string_view name;
  const AdapterModule* module = nullptr;
  ModulePlace place;
};

// REQUIRES: the modules' shapes fit their places and ranks are within the target's. The same
// modules give the same bytes. INVALID_ARGUMENT for a value that is not finite, or rank rows longer
// than a page; RESOURCE_EXHAUSTED above target.max_bytes, before memory is taken.
absl::StatusOr<std::shared_ptr<AdapterImage>> PackAdapter(std::span<const PlacedModule> modules,
                                                          const AdapterTarget& target);

}  // namespace heddle::engine
