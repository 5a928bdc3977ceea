// Help texts, all made from the table of options.
#pragma once

#include <string>

#include "config/option.h"

namespace heddle::config {

// `heddle COMMAND --help`: usage, an example, the options by section; 100 columns at most.
std::string CommandHelp(Command command);

// All of docs/configuration.md. A test in tests/config keeps the file equal to it.
std::string MarkdownHelp();

}  // namespace heddle::config
