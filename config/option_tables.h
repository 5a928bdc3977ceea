// The parts of the table of options. Private to config/; everyone else reads Options().
#pragma once

#include <span>

#include "config/option.h"

namespace heddle::config {

std::span<const Option> EngineOptions();
std::span<const Option> ServerOptions();
std::span<const Option> CommandOptions();

}  // namespace heddle::config
