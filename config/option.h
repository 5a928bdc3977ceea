// The description of one option, and the table of all. From it come the command line, the names of
// environment variables, the keys of the YAML file, --help, docs/configuration.md, range checks
// and error messages.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace heddle::config {

// The commands of the program, as bits: an option belongs to several.
enum Command : uint32_t {
  kServe = 1,
  kGenerate = 2,
  kTokenize = 4,
  kInspect = 8,
  kRender = 16,
  kBench = 32,
  kSimulate = 64,
  kPlan = 128,
  kTrace = 256,
  kTune = 512,
  kHealth = 1024,
};
inline constexpr Command kAllCommands[] = {kServe,  kGenerate, kTokenize, kInspect,
                                           kRender, kBench,    kSimulate, kPlan,
                                           kTrace,  kTune,     kHealth};

std::string_view CommandName(Command command);     // "serve"
std::string_view CommandSummary(Command command);  // one line for the list of commands
// What `heddle COMMAND --help` says before the options: usage and an example.
std::string_view CommandUsage(Command command);

using Field = std::variant<bool Config::*, int64_t Config::*, std::string Config::*,
                           std::optional<int64_t> Config::*, std::optional<double> Config::*,
                           std::optional<std::string> Config::*, std::vector<std::string> Config::*,
                           Bytes Config::*, Seconds Config::*, MemorySize Config::*>;

struct Option {
  std::string_view name;  // --name, YAML key `name`, environment HEDDLE_NAME
  Field field;
  std::string_view section;
  std::string_view value;      // what stands for the value in help: "N", "PATH"; empty for a flag
  std::string_view help;       // one or two sentences, without the default
  uint32_t commands = 0;       // bits of Command
  bool positional = false;     // MODEL
  bool flag_only = false;      // of one call: neither environment nor YAML can set it
  bool splits_commas = false;  // of lists: "a,b" is two values
  double min = -std::numeric_limits<double>::infinity();  // of numbers, both included
  double max = std::numeric_limits<double>::infinity();
  std::span<const std::string_view> choices = {};  // of texts; empty: any
  std::string_view default_text = {};  // where the default's value says little: "the model's"
};

std::span<const Option> Options();

// nullptr if no option has that name. Underscores count as dashes.
const Option* FindOption(std::string_view name);
std::string EnvironmentName(const Option& option);  // HEDDLE_MAX_QUEUE
// The default as help shows it: "8000", "8 MiB", "auto", "" for none.
std::string DefaultText(const Option& option);

}  // namespace heddle::config
