// Parts that several forms of help share: the terminal's, docs/configuration.md, manual pages,
// completions. Private to config/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"

namespace heddle::config {

// An option as it is written: "--port PORT", "--chat", "MODEL".
std::string OptionLabel(const Option& option);

// Its help text and its choices, without the default.
std::string HelpText(const Option& option);

// Titles of the groups of options of these commands (bits of Command), in the order of the table.
std::vector<std::string_view> Sections(uint32_t commands);

// The parts of CommandUsage.
struct UsageParts {
  std::vector<std::string> synopsis;    // "heddle serve MODEL [options]"
  std::vector<std::string> paragraphs;  // one line each
  std::vector<std::string> example;     // lines of a shell, without indentation
};
UsageParts SplitUsage(std::string_view usage);

}  // namespace heddle::config
