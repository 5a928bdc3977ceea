// The program `heddle`: finds the command, makes its configuration, runs it.
// Exit codes: 0 done, 1 the command failed, 2 it was called wrongly.
#include <unistd.h>

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/message.h"
#include "config/help.h"
#include "config/load.h"
#include "config/suggest.h"
#include "server/cli/command.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

using base::StrCat;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

constexpr CliCommand kCommands[] = {
    {config::kServe, RunServe},       {config::kGenerate, RunGenerate},
    {config::kTokenize, RunTokenize}, {config::kInspect, RunInspect},
    {config::kRender, RunRender},     {config::kBench, RunBench},
    {config::kSimulate, RunSimulate}, {config::kPlan, RunPlan},
    {config::kTrace, RunTrace},       {config::kTune, RunTune},
    {config::kHealth, RunHealth},
};

void PrintError(std::string_view message) {
  std::string line = StrCat("heddle: ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int Print(const std::string& text) {
  absl::Status written = WriteOut(text);
  if (written.ok()) written = FlushOut();
  if (written.ok()) return 0;
  PrintError(std::string(written.message()));
  return kFailed;
}

std::string GeneralHelp() {
  std::string out =
      "heddle serves large language models.\n\n"
      "Usage: heddle COMMAND [arguments]\n\nCommands:\n";
  for (const CliCommand& command : kCommands) {
    std::string name(config::CommandName(command.command));
    name.resize(12, ' ');
    out += StrCat("  ", name, config::CommandSummary(command.command), "\n");
  }
  out +=
      "\n  heddle COMMAND --help    the command's options\n"
      "  heddle --version         the version of this program\n";
  return out;
}

const CliCommand* FindCommand(std::string_view name) {
  for (const CliCommand& command : kCommands) {
    if (config::CommandName(command.command) == name) return &command;
  }
  return nullptr;
}

int UnknownCommand(const std::string& name) {
  std::vector<std::string_view> names;
  for (const CliCommand& command : kCommands) {
    names.push_back(config::CommandName(command.command));
  }
  for (const char* option : {"--help", "--version"}) names.push_back(option);
  std::string hint = config::DidYouMean(name, names, "");
  if (hint.empty()) hint = "; `heddle --help` lists the commands";
  PrintError(StrCat("unknown command ", base::Quote(name), hint));
  return kUsage;
}

int RunCommand(const CliCommand& command, std::span<const std::string> arguments,
               std::span<const std::string> environment) {
  absl::StatusOr<config::Loaded> loaded = config::Load(command.command, arguments, environment);
  if (!loaded.ok()) {
    PrintError(std::string(loaded.status().message()));
    return kUsage;
  }
  if (loaded->help_requested) return Print(config::CommandHelp(command.command));
  for (const std::string& warning : loaded->warnings) PrintError(warning);
  absl::Status status = command.run(loaded->config);
  if (status.ok()) return 0;
  PrintError(std::string(status.message()));
  return kFailed;
}

int Main(std::span<const std::string> arguments, std::span<const std::string> environment) {
  if (arguments.empty()) {
    std::string help = GeneralHelp();
    std::fwrite(help.data(), 1, help.size(), stderr);
    return kUsage;
  }
  const std::string& name = arguments[0];
  bool help_of = name == "help" && arguments.size() > 1;
  if (help_of) {
    const CliCommand* command = FindCommand(arguments[1]);
    return command == nullptr ? UnknownCommand(arguments[1])
                              : Print(config::CommandHelp(command->command));
  }
  if (name == "--help" || name == "-h" || name == "help") return Print(GeneralHelp());
  if (name == "--version" || name == "version") return Print("heddle " HEDDLE_VERSION "\n");
  if (name == "--help-markdown") return Print(config::MarkdownHelp());
  const CliCommand* command = FindCommand(name);
  if (command == nullptr) return UnknownCommand(name);
  return RunCommand(*command, arguments.subspan(1), environment);
}

}  // namespace
}  // namespace heddle::server

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return heddle::server::Main(arguments, environment);
}
