// The parts of the table of options. Private to config/; other code uses Options().
#pragma once

#include <span>

#include "config/option.h"

namespace heddle::config {

// Sets of commands that several tables name.
inline constexpr uint32_t kEngineCommands = kServe | kGenerate;
inline constexpr uint32_t kPlanning = kSimulate | kPlan;

std::span<const Option> EngineOptions();
std::span<const Option> AdapterOptions();
std::span<const Option> ServerOptions();
std::span<const Option> GenerationOptions();
std::span<const Option> CommandOptions();

}  // namespace heddle::config
