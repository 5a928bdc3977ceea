// The description of one option, and the table of all. The command line, the names of environment
// variables, the keys of the YAML file, --help, docs/configuration.md, range checks and error
// messages are made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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
// Text of `heddle COMMAND --help` before the options: usage and an example.
std::string_view CommandUsage(Command command);

// A field of an enumeration type, accessed by the value's number.
struct EnumField {
  size_t (*get)(const Config&);
  void (*set)(Config*, size_t);
};

template <auto kMember>
constexpr EnumField EnumOf() {
  return {[](const Config& config) { return static_cast<size_t>(config.*kMember); },
          [](Config* config, size_t value) {
            using Enum = std::remove_reference_t<decltype(config->*kMember)>;
            config->*kMember = static_cast<Enum>(value);
          }};
}

using Field =
    std::variant<EnumField, bool Config::*, int64_t Config::*, std::string Config::*,
                 std::optional<int64_t> Config::*, std::optional<double> Config::*,
                 std::optional<std::string> Config::*, std::vector<std::string> Config::*,
                 Bytes Config::*, Seconds Config::*, MemorySize Config::*, NumbersByName Config::*>;

struct Option {
  std::string_view name;  // --name, YAML key `name`, environment HEDDLE_NAME
  Field field;
  std::string_view section;
  std::string_view value;      // placeholder of the value in help: "N", "PATH"; empty for a flag
  std::string_view help;       // one or two sentences, without the default
  uint32_t commands = 0;       // bits of Command
  bool positional = false;     // MODEL
  bool flag_only = false;      // per call only: not from environment or YAML
  bool splits_commas = false;  // for lists: "a,b" is two values
  bool is_integer = false;     // for NumbersByName: whole numbers only
  bool needs_value = false;    // an empty list is an error, because it would protect nothing
  double min = -std::numeric_limits<double>::infinity();  // for numbers, inclusive
  double max = std::numeric_limits<double>::infinity();
  std::span<const std::string_view> choices = {};  // of texts with fixed choices; of enumerations
  std::string_view default_text = {};              // instead of the default's value: "the model's"
};

std::span<const Option> Options();

// nullptr if no option has that name. Underscores count as dashes.
const Option* FindOption(std::string_view name);
std::string EnvironmentName(const Option& option);  // HEDDLE_MAX_QUEUE
std::string UnderscoredName(const Option& option);  // max_queue
// The name of an enumeration's present value. REQUIRES: the option `name` is an enumeration.
std::string_view ValueText(std::string_view name, const Config& config);
// The default as shown in help: "8000", "8 MiB", "auto", "" for none.
std::string DefaultText(const Option& option);

}  // namespace heddle::config
