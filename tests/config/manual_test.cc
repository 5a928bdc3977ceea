// Manual pages and completions, as text. tests/deploy/packages_test.py has shells and man read
// them.
#include "config/manual.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "config/completion.h"
#include "config/help_parts.h"

namespace heddle::config {
namespace {

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The text as written for troff: with hyphens that are not broken.
std::string Hyphens(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '-') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

TEST_CASE("A command's manual page has the options that it takes, and no other", "[config][unit]") {
  for (Command command : kAllCommands) {
    const std::string page = CommandManual(command, "1.2.3");
    CHECK(Holds(page, "\"heddle 1.2.3\""));
    CHECK(Holds(page, "heddle\\-" + std::string(CommandName(command)) + " \\- "));
    for (const Option& option : Options()) {
      INFO(CommandName(command) << " " << option.name);
      const std::string label = option.positional ? "\\fI" + std::string(option.value) + "\\fR\n"
                                                  : "\\fB\\-\\-" + Hyphens(option.name) + "\\fR";
      // It must be the head of an entry, because texts name other options.
      CHECK(Holds(page, ".TP\n" + label) == ((option.commands & command) != 0));
    }
  }
}

TEST_CASE("heddle(1) refers to the page of every command", "[config][unit]") {
  const std::string page = ProgramManual("1.2.3");
  for (Command command : kAllCommands) {
    CHECK(Holds(page, "\\fBheddle\\-" + std::string(CommandName(command)) + "\\fR(1)"));
  }
}

TEST_CASE("No text of a manual page is taken for a request of troff", "[config][unit]") {
  // man(7) and groff(7): what our pages use.
  const std::string known[] = {".\\\"", ".TH", ".SH", ".SS", ".TP", ".PP",
                               ".RS",   ".RE", ".nf", ".fi", ".br", ".nh"};
  for (Command command : kAllCommands) {
    std::istringstream lines(CommandManual(command, "1") + ProgramManual("1"));
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      CHECK_FALSE(line.starts_with('\''));
      if (!line.starts_with('.')) continue;
      CHECK(std::any_of(std::begin(known), std::end(known),
                        [&line](const std::string& name) { return line.starts_with(name); }));
    }
  }
}

TEST_CASE("Usage falls into synopsis, paragraphs and example", "[config][unit]") {
  const UsageParts parts = SplitUsage(
      "heddle bench MODEL\n       heddle bench --random-weights SHAPE\n\nRuns prompts\nand "
      "decodes.\n\nThen it ends.\n\n  heddle bench x\n    -d y\n");
  CHECK(parts.synopsis ==
        std::vector<std::string>{"heddle bench MODEL", "heddle bench --random-weights SHAPE"});
  CHECK(parts.paragraphs == std::vector<std::string>{"Runs prompts and decodes.", "Then it ends."});
  CHECK(parts.example == std::vector<std::string>{"heddle bench x", "  -d y"});
}

TEST_CASE("Completions name every option, and there are none for other shells", "[config][unit]") {
  CHECK_FALSE(CompletionScript("tcsh").has_value());
  CHECK_FALSE(CompletionScript("").has_value());
  for (std::string_view shell : kCompletionShells) {
    const std::string script = *CompletionScript(shell);
    for (const Option& option : Options()) {
      if (option.positional) continue;
      INFO(shell << " " << option.name);
      CHECK(Holds(script, (shell == "fish" ? "-l " : "--") + std::string(option.name)));
    }
  }
}

}  // namespace
}  // namespace heddle::config
