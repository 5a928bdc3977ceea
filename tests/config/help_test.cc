#include "config/help.h"

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "config/option.h"
#include "tests/support/paths.h"

namespace heddle::config {
namespace {

TEST_CASE("docs/configuration.md is what the table of options says", "[config][unit]") {
  std::ifstream in(test::SourceDir() / "docs" / "configuration.md", std::ios::binary);
  std::string page((std::istreambuf_iterator<char>(in)), {});
  INFO("write it anew: build/heddle --help-markdown > docs/configuration.md");
  CHECK(page == MarkdownHelp());
}

TEST_CASE("Help names every option of the command, within 100 columns", "[config][unit]") {
  for (Command command : kAllCommands) {
    std::string help = CommandHelp(command);
    for (const Option& option : Options()) {
      if ((option.commands & command) == 0 || option.positional) continue;
      INFO(option.name);
      CHECK(help.find("--" + std::string(option.name)) != std::string::npos);
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      CHECK(line.size() <= 100);
    }
  }
}

TEST_CASE("Every row of the table is complete, and no name stands twice", "[config][unit]") {
  std::set<std::string_view> names;
  for (const Option& option : Options()) {
    INFO(option.name);
    CHECK(names.insert(option.name).second);
    CHECK(option.commands != 0);
    CHECK(option.help.size() > 10);
    CHECK(option.help.ends_with('.'));
    CHECK_FALSE(option.section.empty());
    CHECK(FindOption(option.name) == &option);
    CHECK(option.value.empty() == std::holds_alternative<bool Config::*>(option.field));
  }
}

}  // namespace
}  // namespace heddle::config
