#include "config/help.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/strings.h"
#include "config/help_parts.h"
#include "config/values.h"

namespace heddle::config {
namespace {

using base::StrCat;

constexpr size_t kColumns = 100;
constexpr size_t kHelpColumn = 30;

std::string Number(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) {
    return StrCat(static_cast<int64_t>(value));
  }
  return StrCat(value);
}

struct DefaultPrinter {
  const Option& option;
  const Config defaults = {};

  std::string operator()(const EnumField& field) const {
    return std::string(option.choices[field.get(defaults)]);
  }
  std::string operator()(bool Config::*) const { return ""; }
  std::string operator()(int64_t Config::*field) const { return StrCat(defaults.*field); }
  std::string operator()(std::string Config::*field) const { return defaults.*field; }
  std::string operator()(std::optional<int64_t> Config::*) const { return ""; }
  std::string operator()(std::optional<double> Config::*) const { return ""; }
  std::string operator()(std::optional<std::string> Config::*) const { return ""; }
  std::string operator()(std::vector<std::string> Config::*) const { return ""; }
  std::string operator()(Bytes Config::*field) const {
    return base::ExactBytes((defaults.*field).value);
  }
  std::string operator()(Seconds Config::*field) const { return Number((defaults.*field).value); }
  std::string operator()(MemorySize Config::*) const { return "auto"; }
  std::string operator()(NumbersByName Config::*) const { return ""; }
};

std::string Join(std::span<const std::string_view> parts, std::string_view separator) {
  std::string out;
  for (std::string_view part : parts) out += StrCat(out.empty() ? "" : separator, part);
  return out;
}

// The help text with the choices and the default.
std::string FullHelp(const Option& option) {
  std::string text = HelpText(option);
  std::string otherwise = DefaultText(option);
  if (!otherwise.empty()) text += StrCat(" [", otherwise, "]");
  return text;
}

// Appends words, broken at kColumns, each further line indented to kHelpColumn.
void AppendWrapped(std::string_view text, size_t column, std::string* out) {
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    if (column > kHelpColumn && column + 1 + word.size() > kColumns) {
      out->append(1, '\n').append(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      out->push_back(' ');
      ++column;
    }
    out->append(word);
    column += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  out->push_back('\n');
}

void AppendOption(std::string_view label, std::string_view help, std::string* out) {
  std::string head = StrCat("  ", label);
  if (head.size() + 2 > kHelpColumn) {
    head += StrCat("\n", std::string(kHelpColumn, ' '));
  } else {
    head.resize(kHelpColumn, ' ');
  }
  out->append(head);
  AppendWrapped(help, kHelpColumn, out);
}

std::string CommandList(const Option& option) {
  std::vector<std::string_view> names;
  for (Command command : kAllCommands) {
    if ((option.commands & command) != 0) names.push_back(CommandName(command));
  }
  return Join(names, ", ");
}

void AppendMarkdownRow(const Option& option, std::string* out) {
  std::string environment = option.flag_only ? "" : StrCat("`", EnvironmentName(option), "`");
  std::string help(option.help);
  if (!option.choices.empty()) help += StrCat(" One of `", Join(option.choices, "`, `"), "`.");
  std::string label = OptionLabel(option);
  std::string otherwise = DefaultText(option);
  out->append(StrCat("| `", label, "` | ", environment, " | ", otherwise, " | ",
                     CommandList(option), " | ", help, " |\n"));
}

}  // namespace

std::string OptionLabel(const Option& option) {
  if (option.positional) return std::string(option.value);
  return StrCat("--", option.name, option.value.empty() ? "" : " ", option.value);
}

std::string HelpText(const Option& option) {
  std::string text(option.help);
  if (!option.choices.empty()) text += StrCat(" One of ", Join(option.choices, ", "), ".");
  return text;
}

std::vector<std::string_view> Sections(uint32_t commands) {
  std::vector<std::string_view> sections;
  for (const Option& option : Options()) {
    bool applies = (option.commands & commands) != 0;
    if (applies && std::find(sections.begin(), sections.end(), option.section) == sections.end()) {
      sections.push_back(option.section);
    }
  }
  return sections;
}

UsageParts SplitUsage(std::string_view usage) {
  UsageParts parts;
  bool in_synopsis = true;
  bool continues = false;  // the line before belongs to the same paragraph
  while (!usage.empty()) {
    const size_t end = std::min(usage.find('\n'), usage.size());
    const std::string_view line = usage.substr(0, end);
    usage.remove_prefix(std::min(end + 1, usage.size()));
    const bool indented = line.starts_with("  ");
    if (line.empty()) {
      in_synopsis = continues = false;
    } else if (in_synopsis) {
      parts.synopsis.emplace_back(line.substr(line.find_first_not_of(' ')));
    } else if (indented) {
      parts.example.emplace_back(line.substr(2));
    } else if (continues) {
      parts.paragraphs.back() += StrCat(" ", line);
    } else {
      parts.paragraphs.emplace_back(line);
      continues = true;
    }
  }
  return parts;
}

const Option* FindOption(std::string_view name) {
  std::string dashed(name);
  for (char& c : dashed) {
    if (c == '_') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  for (const Option& option : Options()) {
    if (option.name == dashed) return &option;
  }
  return nullptr;
}

std::string EnvironmentName(const Option& option) {
  std::string name = StrCat("HEDDLE_", option.name);
  for (char& c : name) {
    if (c == '-') c = '_';
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return name;
}

std::string UnderscoredName(const Option& option) {
  std::string name(option.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string_view ValueText(std::string_view name, const Config& config) {
  const Option* option = FindOption(name);
  HEDDLE_CHECK(option != nullptr && std::holds_alternative<EnumField>(option->field),
               "an enumeration among the options");
  return option->choices[std::get<EnumField>(option->field).get(config)];
}

std::string DefaultText(const Option& option) {
  if (!option.default_text.empty()) return std::string(option.default_text);
  return std::visit(DefaultPrinter{option}, option.field);
}

std::string CommandHelp(Command command) {
  std::string out = StrCat("Usage: ", CommandUsage(command));
  for (std::string_view section : Sections(command)) {
    out += StrCat("\n", section, ":\n");
    for (const Option& option : Options()) {
      if (option.section != section || (option.commands & command) == 0) continue;
      AppendOption(OptionLabel(option), FullHelp(option), &out);
    }
  }
  out += "\n";
  AppendOption("-h, --help", "Print this help.", &out);
  if ((FindOption("config")->commands & command) != 0) {
    out +=
        "\nMost options can also be set by environment variables (--max-queue: HEDDLE_MAX_QUEUE)\n"
        "or in the YAML file (max-queue: 64). Flags win over the environment, and the environment\n"
        "over the file.\n";
  }
  return out;
}

std::string MarkdownHelp() {
  std::string out =
      "<!-- Written by `heddle --help-markdown` from the tables in config/options_*.cc. -->\n"
      "# Configuration\n\n"
      "Every option has one name. It is a flag (`--max-queue 64`), an environment variable\n"
      "(`HEDDLE_MAX_QUEUE=64`) and a key of the YAML file that `--config` names (`max-queue: "
      "64`).\n"
      "Flags win over the environment, the environment over the file, the file over the\n"
      "defaults. One file can serve all commands: each takes what concerns it. A name that is not\n"
      "known is an error, in the file as well as on the command line.\n\n"
      "Sizes are numbers with a unit (`8MiB`, `4GiB`, `500MB`), times are seconds or have a unit\n"
      "(`30`, `500ms`, `2m`). Options without an environment variable concern one call and can\n"
      "only be flags.\n\n"
      "```yaml\n# heddle.yaml, for: heddle serve --config heddle.yaml\n"
      "model: /models/Qwen3-0.6B\nhost: 0.0.0.0\nkv-memory: 60%\nmax-queue: 256\n"
      "served-model-name: [qwen3, gpt-4o-mini]\nlog-format: json\n```\n";
  for (std::string_view section : Sections(~0u)) {
    out += StrCat("\n## ", section,
                  "\n\n| option | environment | default | commands | meaning |\n"
                  "|---|---|---|---|---|\n");
    for (const Option& option : Options()) {
      if (option.section == section) AppendMarkdownRow(option, &out);
    }
  }
  return out;
}

}  // namespace heddle::config
