// `heddle inspect`: describes a model and what this machine can hold of it, without loading
// weights.
#pragma once

#include <string>
#include <vector>

#include "engine/model/load.h"
#include "engine/model/tensor_report.h"

namespace heddle::server {

// The first few names, and the number of the others.
std::string UnusedText(const std::vector<std::string>& names);

// For people: a few aligned lines, and one for each of `tensors`.
std::string InspectText(const std::string& path, const engine::ModelInfo& model,
                        const engine::TensorReports& tensors);

// For programs: one JSON object; byte counts are plain numbers. Keys are stable.
std::string InspectJson(const std::string& path, const engine::ModelInfo& model,
                        const engine::TensorReports& tensors);

}  // namespace heddle::server
