// The program `heddle`: finds the command, makes its configuration, runs it.
// Exit codes: 0 done, 1 the command failed, 2 it was called wrongly.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bounded_write.h"
#include "base/message.h"
#include "config/completion.h"
#include "config/help.h"
#include "config/load.h"
#include "config/manual.h"
#include "config/suggest.h"
#include "engine/files/mapping_faults.h"
#include "server/cli/build_name.h"
#include "server/cli/command.h"
#include "server/cli/demo_model.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

using base::StrCat;

constexpr int kFailed = 1;
constexpr int kRanksLost = 75;  // EX_TEMPFAIL: all processes of the engine are to be started again
constexpr int kUsage = 2;

constexpr CliCommand kCommands[] = {
    {config::kServe, RunServe},       {config::kGenerate, RunGenerate},
    {config::kTokenize, RunTokenize}, {config::kInspect, RunInspect},
    {config::kRender, RunRender},     {config::kBench, RunBench},
    {config::kSimulate, RunSimulate}, {config::kPlan, RunPlan},
    {config::kTrace, RunTrace},       {config::kTune, RunTune},
    {config::kHealth, RunHealth},
};

// A stopped reader of standard error must not keep the program from ending.
constexpr std::chrono::milliseconds kLastWords{500};

void PrintError(std::string_view message) {
  base::WriteWithin(STDERR_FILENO, StrCat("heddle: ", message, "\n"), kLastWords);
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
      "  heddle --version         the version of this program\n"
      "  heddle --completion SHELL  completions for bash, zsh or fish, as in\n"
      "                           source <(heddle --completion bash)\n";
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
  for (const char* option : {"--help", "--version", "--completion"}) names.push_back(option);
  std::string hint = config::DidYouMean(name, names, "");
  if (hint.empty()) hint = "; `heddle --help` lists the commands";
  PrintError(StrCat("unknown command ", base::Quote(name), hint));
  return kUsage;
}

// `heddle --man` is heddle(1), `heddle --man serve` is heddle-serve(1).
int PrintManual(std::span<const std::string> arguments) {
  if (arguments.empty()) return Print(config::ProgramManual(HEDDLE_VERSION));
  const CliCommand* command = FindCommand(arguments[0]);
  if (command == nullptr) return UnknownCommand(arguments[0]);
  return Print(config::CommandManual(command->command, HEDDLE_VERSION));
}

int PrintCompletion(std::span<const std::string> arguments) {
  const std::string shell = arguments.empty() ? "" : arguments[0];
  const std::optional<std::string> script = config::CompletionScript(shell);
  if (script.has_value()) return Print(*script);
  PrintError(StrCat("--completion needs a shell: bash, zsh or fish",
                    shell.empty() ? "" : StrCat(", not ", base::Quote(shell))));
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
  absl::Status status = ResolveDemoModel(&loaded->config);
  if (status.ok()) status = command.run(loaded->config);
  if (status.ok()) return 0;
  PrintError(std::string(status.message()));
  return absl::IsAborted(status) ? kRanksLost : kFailed;
}

int Main(std::span<const std::string> arguments, std::span<const std::string> environment) {
  if (arguments.empty()) {
    base::WriteWithin(STDERR_FILENO, GeneralHelp(), kLastWords);
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
  if (name == "--version" || name == "version")
    return Print(base::StrCat("heddle ", BuildName(HEDDLE_VERSION), "\n"));
  if (name == "--help-markdown") return Print(config::MarkdownHelp());
  if (name == "--man") return PrintManual(arguments.subspan(1));
  if (name == "--completion") return PrintCompletion(arguments.subspan(1));
  const CliCommand* command = FindCommand(name);
  if (command == nullptr) return UnknownCommand(name);
  return RunCommand(*command, arguments.subspan(1), environment);
}

// Opens standard streams that are closed. Otherwise the next opened descriptor (a connection, a
// file of pages) would take such a number, and our messages would be written to it. Runs before
// libraries initialise themselves, since gRPC's opens a descriptor then; so nothing of any library
// or sanitizer may be used but system calls.
__attribute__((no_sanitize("address", "undefined", "thread"))) void OpenStandardStreams(int, char**,
                                                                                        char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) != -1) continue;
    syscall(SYS_openat, AT_FDCWD, "/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}
__attribute__((section(".preinit_array"),
               used)) void (*const kOpenStandardStreams)(int, char**, char**) = OpenStandardStreams;

// Replaces the library's handler, whose write may wait without end.
[[noreturn]] void OnTerminate() {
  std::string what = "no exception";
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
      what = "an exception of no known type";
    }
  }
  PrintError(StrCat("the program ends, since nobody caught an exception: ", what));
  std::abort();
}

}  // namespace
}  // namespace heddle::server

int main(int argc, char** argv) {
  std::set_terminate(heddle::server::OnTerminate);
  heddle::engine::ReportMappingFaults();
  std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return heddle::server::Main(arguments, environment);
}
