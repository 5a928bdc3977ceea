// Finds the places of a file's modules in its base, and builds their factors. Private to
// engine/adapter.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/build_factors.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::engine {

// The message with the file's path in front.
absl::Status AtFile(const AdapterFile& file, const absl::Status& status);

// Adds all modules of the file to `factors`. Returns them in words: "k_proj, q_proj in 22 layers".
// INVALID_ARGUMENT if the file is for another architecture, a module has no place or does not fit
// it, or two change the same matrix.
absl::StatusOr<std::string> PlaceModules(const AdapterFile& file, const AdapterTarget& target,
                                         FactorBuilder* factors);

}  // namespace heddle::engine
