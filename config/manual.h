// Manual pages, made from the table of options, in the macros of man(7).
#pragma once

#include <string>
#include <string_view>

#include "config/option.h"

namespace heddle::config {

// heddle(1): what the program is, its commands, its files.
std::string ProgramManual(std::string_view version);

// heddle-serve(1) and so on: what `heddle COMMAND --help` says.
std::string CommandManual(Command command, std::string_view version);

}  // namespace heddle::config
