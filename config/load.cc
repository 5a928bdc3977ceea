#include "config/load.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "base/message.h"
#include "base/status.h"
#include "config/suggest.h"
#include "config/values.h"
#include "config/yaml_file.h"

namespace heddle::config {
namespace {

using base::Quote;
using base::StrCat;

constexpr std::string_view kPrefix = "HEDDLE_";

bool Applies(const Option& option, Command command) { return (option.commands & command) != 0; }
bool IsList(const Option& option) {
  return std::holds_alternative<std::vector<std::string> Config::*>(option.field);
}
bool IsFlag(const Option& option) { return std::holds_alternative<bool Config::*>(option.field); }

// The values of one option on the command line.
struct Given {
  const Option* option;
  std::vector<std::string> texts;
  CLI::Option* parsed = nullptr;
};

struct CommandLine {
  std::vector<Given> given;
  bool help = false;
};

absl::Status UnknownArgument(Command command, const std::string& argument) {
  if (!argument.starts_with('-') || argument == "-") {
    return absl::InvalidArgumentError(
        StrCat("unexpected argument ", Quote(argument), "; a text with spaces needs quotes"));
  }
  std::string name = argument.substr(0, argument.find('='));
  name.erase(0, name.find_first_not_of('-') == name.npos ? 0 : name.find_first_not_of('-'));
  std::vector<std::string_view> names;
  for (const Option& option : Options()) {
    if (Applies(option, command)) names.push_back(option.name);
  }
  std::string hint = DidYouMean(name, names, "--");
  if (hint.empty()) hint = StrCat("; `heddle ", CommandName(command), " --help` lists the options");
  return absl::InvalidArgumentError(
      StrCat("unknown option ", argument.substr(0, argument.find('=')), hint));
}

// CLI11's message, in our words for the common cases.
absl::Status CommandLineError(const CLI::ParseError& error) {
  std::string message = error.what();
  if (size_t colon = message.find(": ");
      dynamic_cast<const CLI::ArgumentMismatch*>(&error) && colon != message.npos) {
    return absl::InvalidArgumentError(StrCat(message.substr(0, colon), " needs a value"));
  }
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<CommandLine> ReadArguments(Command command, std::span<const std::string> arguments) {
  CLI::App app;
  app.set_help_flag("");
  app.allow_extras();
  CommandLine line;
  app.add_flag("-h,--help", line.help);
  std::deque<Given> given;  // CLI11 keeps pointers to the texts
  for (const Option& option : Options()) {
    if (!Applies(option, command)) continue;
    Given& entry = given.emplace_back(Given{&option, {}});
    std::string name = StrCat("--", option.name);
    if (option.positional) {
      entry.parsed = app.add_option(StrCat(option.name, ",", name), entry.texts)->expected(1);
    } else if (IsFlag(option)) {
      entry.parsed = app.add_flag(name, entry.texts);
    } else {
      entry.parsed = app.add_option(name, entry.texts)->expected(1);
    }
    entry.parsed->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return CommandLineError(error);
  }
  if (line.help) return line;
  std::vector<std::string> extras = app.remaining();
  auto option = std::find_if(extras.begin(), extras.end(),
                             [](const std::string& text) { return text.starts_with('-'); });
  if (!extras.empty()) {
    return UnknownArgument(command, option == extras.end() ? extras.front() : *option);
  }
  for (Given& entry : given) {
    if (entry.parsed->count() > 0) line.given.push_back(std::move(entry));
  }
  return line;
}

absl::Status ApplyArguments(const CommandLine& line, Config* config) {
  for (const Given& entry : line.given) {
    std::string origin = entry.option->positional ? std::string(entry.option->value)
                                                  : StrCat("--", entry.option->name);
    if (entry.texts.size() > 1 && !IsList(*entry.option)) {
      return absl::InvalidArgumentError(
          StrCat(origin, " is given ", entry.texts.size(), " times; it takes one value"));
    }
    HEDDLE_RETURN_IF_ERROR(SetOption(*entry.option, entry.texts, origin, config));
  }
  return absl::OkStatus();
}

// Whether a name is one of the variables by which Kubernetes tells every pod where the Services of
// its namespace are. A Service called heddle gives HEDDLE_PORT=tcp://10.96.0.7:8000,
// HEDDLE_SERVICE_HOST and others: addresses, not options.
bool IsServiceName(std::string_view name) { return name.find("_SERVICE_") != name.npos; }
bool IsServiceAddress(std::string_view name, std::string_view value) {
  return name.ends_with("_PORT") && value.find("://") != value.npos;
}

absl::Status ApplyEnvironment(Command command, std::span<const std::string> environment,
                              Loaded* loaded) {
  std::vector<std::string> storage;
  for (const Option& option : Options()) {
    if (!option.flag_only) storage.push_back(EnvironmentName(option).substr(kPrefix.size()));
  }
  std::vector<std::string_view> names(storage.begin(), storage.end());
  for (const std::string& entry : environment) {
    size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == entry.npos) continue;
    std::string name = entry.substr(0, equals);
    std::string value = entry.substr(equals + 1);
    const Option* option = FindOption(name.substr(kPrefix.size()));
    if (option == nullptr || option->flag_only) {
      if (IsServiceName(name)) continue;
      // It is not an error, because the name may be another program's, but a likely mistake is
      // reported.
      std::string hint = DidYouMean(name.substr(kPrefix.size()), names, kPrefix);
      if (!hint.empty()) loaded->warnings.push_back(StrCat("ignoring ", name, hint));
      continue;
    }
    if (!Applies(*option, command) || (value.empty() && !option->needs_value)) continue;
    if (IsServiceAddress(name, value)) {
      loaded->warnings.push_back(
          StrCat("ignoring ", name, "=", value, ": Kubernetes' address of a Service of that name"));
      continue;
    }
    HEDDLE_RETURN_IF_ERROR(SetOption(*option, {&value, 1}, name, &loaded->config));
  }
  return absl::OkStatus();
}

absl::Status ApplyYamlFile(Command command, const std::string& path, Config* config) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<YamlSetting> settings, ReadYamlFile(path));
  std::vector<std::string_view> names;
  for (const Option& option : Options()) {
    if (!option.flag_only && option.name != "config") names.push_back(option.name);
  }
  for (const YamlSetting& setting : settings) {
    const Option* option = FindOption(setting.key);
    std::string place = StrCat(path, " line ", setting.line, ": ");
    if (option == nullptr) {
      return absl::InvalidArgumentError(
          StrCat(place, "unknown option ", setting.key, DidYouMean(setting.key, names, "")));
    }
    if (option->flag_only || option->name == "config") {
      return absl::InvalidArgumentError(
          StrCat(place, setting.key, " can only be given on the command line"));
    }
    if (!Applies(*option, command)) continue;  // one file serves all commands
    if (setting.values.size() > 1 && !IsList(*option)) {
      return absl::InvalidArgumentError(
          StrCat(place, setting.key, " has ", setting.values.size(), " values; it takes one"));
    }
    HEDDLE_RETURN_IF_ERROR(SetOption(*option, setting.values, StrCat(place, setting.key), config));
  }
  return absl::OkStatus();
}

// Gives steps the CPU's sizes where the device is known to be one; a GPU has its own.
// A max_batch_tokens below the default of --max-batch-seqs is not a contradiction: the user did not
// ask for that many sequences.
void FillStepSize(Command command, Config* config) {
  constexpr int64_t kCpuTokens = 512, kCpuSeqs = 256;
  // Plans are for a machine that their own options name.
  const bool is_planned = command == kPlan || command == kSimulate;
  if (is_planned || config->device != "cpu") return;
  if (config->max_batch_tokens == 0) config->max_batch_tokens = kCpuTokens;
  if (config->max_batch_seqs != 0) return;
  config->max_batch_seqs = kCpuSeqs;
  int64_t step_tokens = config->max_batch_tokens;
  if (config->max_step_tokens > 0) step_tokens = std::min(step_tokens, config->max_step_tokens);
  config->max_batch_seqs = std::min(config->max_batch_seqs, step_tokens);
}

// An IPv6 address as URLs write it, in brackets, is the address.
void StripBrackets(std::string* host) {
  if (host->size() > 2 && host->front() == '[' && host->back() == ']' &&
      host->find(':') != std::string::npos) {
    *host = host->substr(1, host->size() - 2);
  }
}

}  // namespace

absl::StatusOr<Loaded> Load(Command command, std::span<const std::string> arguments,
                            std::span<const std::string> environment) {
  Loaded loaded;
  HEDDLE_ASSIGN_OR_RETURN(CommandLine line, ReadArguments(command, arguments));
  if (line.help) {
    loaded.help_requested = true;
    return loaded;
  }
  // The first pass only finds the file's name; the file's values then go below the others.
  HEDDLE_RETURN_IF_ERROR(ApplyEnvironment(command, environment, &loaded));
  HEDDLE_RETURN_IF_ERROR(ApplyArguments(line, &loaded.config));
  if (!loaded.config.config_file.empty()) {
    Config from_file;
    HEDDLE_RETURN_IF_ERROR(ApplyYamlFile(command, loaded.config.config_file, &from_file));
    loaded = Loaded{.config = from_file, .help_requested = false, .warnings = {}};
    HEDDLE_RETURN_IF_ERROR(ApplyEnvironment(command, environment, &loaded));
    HEDDLE_RETURN_IF_ERROR(ApplyArguments(line, &loaded.config));
  }
  FillStepSize(command, &loaded.config);
  StripBrackets(&loaded.config.host);
  HEDDLE_RETURN_IF_ERROR(Validate(command, loaded.config));
  return loaded;
}

}  // namespace heddle::config
