#include "config/completion.h"

#include <vector>

#include "base/message.h"
#include "config/help_parts.h"

namespace heddle::config {
namespace {

using base::StrCat;

// The kind of an option's value, which decides what is completed.
enum class ValueKind : uint8_t { kNone, kChoice, kFile, kFolder, kText };

ValueKind KindOf(const Option& option) {
  if (option.value.empty()) return ValueKind::kNone;
  if (!option.choices.empty()) return ValueKind::kChoice;
  if (option.value == "FILE") return ValueKind::kFile;
  return option.value == "DIR" ? ValueKind::kFolder : ValueKind::kText;
}

std::string Choices(const Option& option) {
  std::string words;
  for (std::string_view choice : option.choices) words += StrCat(words.empty() ? "" : " ", choice);
  return words;
}

std::string CommandNames(uint32_t commands, std::string_view separator) {
  std::string names;
  for (Command command : kAllCommands) {
    if ((commands & command) != 0) {
      names += StrCat(names.empty() ? "" : separator, CommandName(command));
    }
  }
  return names;
}

constexpr uint32_t kEveryCommand = ~0u;

// The commands that take a MODEL.
uint32_t ModelCommands() { return FindOption("model")->commands; }

// The beginning of the help up to its details: menus have one line.
std::string Summary(const Option& option) {
  std::string_view help = option.help;
  help = help.substr(0, help.size() - (help.ends_with('.') ? 1 : 0));
  for (std::string_view end : {". ", "; "}) help = help.substr(0, help.find(end));
  // A colon ends the summary, unless so little precedes it that it is only a name ("vllm: what that
  // means"), or it is part of text in backquotes.
  constexpr size_t kLeast = 10;
  const size_t colon = help.find(": ");
  if (colon != help.npos && colon >= kLeast && help.substr(0, colon).find('`') == help.npos) {
    help = help.substr(0, colon);
  }
  std::string summary(help);
  std::erase(summary, '`');
  return summary;
}

// Puts text in single quotes, for a shell in which `quote` writes a quote inside of them.
std::string Quoted(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += quote;
    } else {
      out.push_back(c);
    }
  }
  return out + "'";
}

// Patterns of `case` for the options with values of a kind: "--config
// --tls-key".
std::string BashPattern(ValueKind kind) {
  std::string pattern;
  for (const Option& option : Options()) {
    if (option.positional || KindOf(option) != kind) continue;
    pattern += StrCat(pattern.empty() ? "" : " | ", "--", option.name);
  }
  return pattern;
}

std::string BashValues() {
  std::string out = "  case $previous in\n";
  for (const Option& option : Options()) {
    if (KindOf(option) != ValueKind::kChoice) continue;
    out += StrCat("    --", option.name, ") _heddle_words ", Quoted(Choices(option), ""),
                  "; return ;;\n");
  }
  out += StrCat("    ", BashPattern(ValueKind::kFile), ") _heddle_files -f; return ;;\n");
  out += StrCat("    ", BashPattern(ValueKind::kFolder), ") _heddle_files -d; return ;;\n");
  return out + StrCat("    ", BashPattern(ValueKind::kText), ") return ;;\n  esac\n");
}

std::string BashOptions() {
  std::string out = "  local options\n  case ${COMP_WORDS[1]} in\n";
  for (Command command : kAllCommands) {
    out += StrCat("    ", CommandName(command), ") options='--help");
    for (const Option& option : Options()) {
      if (option.positional || (option.commands & command) == 0) continue;
      out += StrCat(" --", option.name);
    }
    out += "' ;;\n";
  }
  return out + "    *) return ;;\n  esac\n";
}

std::string BashScript() {
  std::string out =
      "# Completion of heddle for bash, written by `heddle --completion bash`.\n"
      "# $current is the word that is being written.\n"
      "_heddle_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\"); }\n"
      "_heddle_files() {\n"
      "  compopt -o filenames 2>/dev/null\n"
      "  mapfile -t COMPREPLY < <(compgen \"$@\" -- \"$current\")\n"
      "}\n"
      "_heddle_models() {\n"
      "  compopt -o filenames 2>/dev/null\n"
      "  mapfile -t COMPREPLY < <(compgen -d -W demo -- \"$current\"\n"
      "                           compgen -f -X '!*.gguf' -- \"$current\")\n"
      "}\n"
      "_heddle() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  COMPREPLY=()\n"
      "  # In --option=value, the = is a word of its own.\n"
      "  if [[ $current == = ]]; then current=''\n"
      "  elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
      "  if ((COMP_CWORD == 1)); then\n";
  out += StrCat("    _heddle_words '", CommandNames(kEveryCommand, " "),
                " help --help --version --completion'; return\n  fi\n");
  out += StrCat(
      "  case ${COMP_WORDS[1]} in\n    help) _heddle_words '", CommandNames(kEveryCommand, " "),
      "'; return ;;\n    --completion) _heddle_words 'bash zsh fish'; return ;;\n  esac\n");
  out += BashValues();
  out += BashOptions();
  out += "  if [[ $current == -* ]]; then _heddle_words \"$options\"; return; fi\n";
  out += StrCat("  case ${COMP_WORDS[1]} in ", CommandNames(ModelCommands(), " | "),
                ") _heddle_models ;; esac\n}\n");
  return out + "complete -F _heddle heddle\n";
}

constexpr std::string_view kZshQuote = "'\\''";

// Escapes text within the brackets of a specification of _arguments.
std::string ZshText(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == ']' || c == '[' || c == '\\' || c == ':') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::string ZshAction(const Option& option) {
  if (option.name == "model") return "_heddle_models";
  switch (KindOf(option)) {
    case ValueKind::kChoice:
      return StrCat("(", Choices(option), ")");
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kFolder:
      return "_files -/";
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
  }
  return " ";
}

std::string ZshArgument(const Option& option) {
  const bool repeats = std::holds_alternative<std::vector<std::string> Config::*>(option.field);
  std::string spec = option.positional ? "1" : StrCat(repeats ? "*" : "", "--", option.name);
  if (!option.positional) {
    spec += StrCat(option.value.empty() ? "" : "=", "[", ZshText(Summary(option)), "]");
  }
  if (!option.value.empty()) spec += StrCat(":", option.value, ":", ZshAction(option));
  return Quoted(spec, kZshQuote);
}

std::string ZshScript() {
  std::string out =
      "#compdef heddle\n"
      "# Completion of heddle for zsh, written by `heddle --completion zsh`.\n"
      "_heddle_models() {\n"
      "  _alternative 'files:model:_files -g \"*.gguf(-.)\"' 'folders:model:_files -/' "
      "'names:model:(demo)'\n"
      "}\n"
      "_heddle() {\n  local -a commands\n  commands=(\n";
  for (Command command : kAllCommands) {
    out +=
        StrCat("    ",
               Quoted(StrCat(CommandName(command), ":", CommandSummary(command)), kZshQuote), "\n");
  }
  out +=
      "    'help:Say what the options of a command are'\n  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    if [[ $PREFIX == -* ]]; then compadd -- --help --version --completion\n"
      "    else _describe command commands; fi\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  ((CURRENT--))\n  case $command in\n"
      "    help) _describe command commands ;;\n"
      "    --completion) _arguments '1:SHELL:(bash zsh fish)' ;;\n";
  for (Command command : kAllCommands) {
    out += StrCat("    ", CommandName(command), ")\n      _arguments '--help[Print the options]'");
    for (const Option& option : Options()) {
      if ((option.commands & command) != 0) out += StrCat(" \\\n        ", ZshArgument(option));
    }
    out += " ;;\n";
  }
  return out +
         "  esac\n}\n"
         "# As a file of $fpath this is the function's body; sourced, it registers the function.\n"
         "if [[ $funcstack[1] == _heddle ]]; then _heddle \"$@\"; else compdef _heddle heddle; "
         "fi\n";
}

constexpr std::string_view kFishQuote = "\\'";

std::string FishValue(const Option& option) {
  switch (KindOf(option)) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kChoice:
      return StrCat(" -x -a ", Quoted(Choices(option), kFishQuote));
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kText:
      break;
  }
  return " -x";
}

std::string FishScript() {
  std::string out =
      "# Completion of heddle for fish, written by `heddle --completion fish`.\n"
      "complete -c heddle -f\n";
  const std::string_view first = "complete -c heddle -n __fish_use_subcommand";
  for (Command command : kAllCommands) {
    out += StrCat(first, " -a ", CommandName(command), " -d ",
                  Quoted(CommandSummary(command), kFishQuote), "\n");
  }
  out += StrCat(first, " -a help -d 'Say what the options of a command are'\n", first,
                " -l version -d 'Print the version'\n", first,
                " -l completion -x -a 'bash zsh fish' -d 'Print a script like this one'\n",
                "complete -c heddle -l help -d 'Print the commands, or the options of one'\n",
                "complete -c heddle -n '__fish_seen_subcommand_from help' -a '",
                CommandNames(kEveryCommand, " "), "'\n");
  const std::string models = CommandNames(ModelCommands(), " ");
  out += StrCat("complete -c heddle -n '__fish_seen_subcommand_from ", models, "' -F\n",
                "complete -c heddle -n '__fish_seen_subcommand_from ", models,
                "' -a demo -d 'The small model that comes with heddle'\n");
  for (const Option& option : Options()) {
    if (option.positional) continue;
    out += StrCat("complete -c heddle -n '__fish_seen_subcommand_from ",
                  CommandNames(option.commands, " "), "' -l ", option.name, FishValue(option),
                  " -d ", Quoted(Summary(option), kFishQuote), "\n");
  }
  return out;
}

}  // namespace

std::optional<std::string> CompletionScript(std::string_view shell) {
  if (shell == "bash") return BashScript();
  if (shell == "zsh") return ZshScript();
  if (shell == "fish") return FishScript();
  return std::nullopt;
}

}  // namespace heddle::config
