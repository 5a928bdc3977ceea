#include "config/manual.h"

#include "base/message.h"
#include "config/help_parts.h"

namespace heddle::config {
namespace {

using base::StrCat;

// Escapes text so that troff shows it literally: without escapes, breakable hyphens or typographic
// quotes. Text between backquotes becomes bold.
std::string Troff(std::string_view text) {
  std::string out;
  bool bold = false;
  for (char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '`':
        bold = !bold;
        out += bold ? "\\fB" : "\\fR";
        break;
      default:
        out.push_back(c);
    }
  }
  // A line that begins with a dot would be a request. (A quote can no longer begin a line.)
  return out.starts_with('.') ? StrCat("\\&", out) : out;
}

std::string UpperCase(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return upper;
}

// Lowers the first letter, as in the line of NAME: "serve a model".
std::string LowerFirst(std::string_view text) {
  std::string lower(text);
  if (!lower.empty() && lower[0] >= 'A' && lower[0] <= 'Z')
    lower[0] = static_cast<char>(lower[0] + 32);
  return lower;
}

std::string Head(std::string_view page, std::string_view version, std::string_view summary) {
  return StrCat(".\\\" Written by `heddle --man` from the tables in config/.\n.TH ",
                UpperCase(page), " 1 \"\" \"heddle ", version,
                "\" \"User Commands\"\n.nh\n.SH NAME\n", Troff(page), " \\- ",
                Troff(LowerFirst(summary)), "\n");
}

void AppendExample(const std::vector<std::string>& lines, std::string* out) {
  if (lines.empty()) return;
  out->append(".RS 4\n.nf\n");
  for (const std::string& line : lines) out->append(StrCat(Troff(line), "\n"));
  out->append(".fi\n.RE\n");
}

void AppendOption(const Option& option, std::string* out) {
  out->append(".TP\n");
  if (option.positional) {
    out->append(StrCat("\\fI", Troff(option.value), "\\fR\n"));
  } else {
    out->append(StrCat("\\fB", Troff(StrCat("--", option.name)), "\\fR"));
    if (!option.value.empty()) out->append(StrCat(" \\fI", Troff(option.value), "\\fR"));
    out->append("\n");
  }
  out->append(StrCat(Troff(HelpText(option)), "\n"));
  const std::string otherwise = DefaultText(option);
  if (!otherwise.empty()) out->append(StrCat("Default: ", Troff(otherwise), ".\n"));
}

void AppendOptions(Command command, std::string* out) {
  out->append(".SH OPTIONS\n");
  for (std::string_view section : Sections(command)) {
    out->append(StrCat(".SS ", Troff(section), "\n"));
    for (const Option& option : Options()) {
      if (option.section == section && (option.commands & command) != 0) AppendOption(option, out);
    }
  }
  out->append(".SS Help\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nPrint the options.\n");
}

void AppendExitStatus(std::string* out) {
  out->append(
      ".SH EXIT STATUS\n.TP\n0\nThe command is done.\n.TP\n1\nIt failed; standard error says why.\n"
      ".TP\n2\nIt was called wrongly: with an unknown option, or "
      "a value\nthat an option does not take.\n");
}

bool ReadsConfiguration(Command command) { return (FindOption("config")->commands & command) != 0; }

// Appends the environment variables of the command's options.
void AppendEnvironment(Command command, std::string* out) {
  if (!ReadsConfiguration(command)) return;
  out->append(
      ".SH ENVIRONMENT\nAn option that does not concern one call alone has a variable: its name in "
      "upper case,\nwith underscores, after HEDDLE_. The file that \\fB\\-\\-config\\fR names has "
      "it as a key. Flags win\nover the environment, and the environment over the file.\n.PP\n");
  std::string names;
  for (const Option& option : Options()) {
    if (option.flag_only || (option.commands & command) == 0) continue;
    names += StrCat(names.empty() ? "" : ",\n", "\\fB", EnvironmentName(option), "\\fR");
  }
  out->append(StrCat(names, "\n"));
}

}  // namespace

std::string ProgramManual(std::string_view version) {
  std::string out = Head("heddle", version, "serve large language models");
  out +=
      ".SH SYNOPSIS\n\\fBheddle\\fR \\fICOMMAND\\fR [\\fIarguments\\fR]\n"
      ".br\n\\fBheddle\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR\n"
      ".br\n\\fBheddle \\-\\-version\\fR\n"
      ".br\n\\fBheddle \\-\\-completion\\fR bash|zsh|fish\n"
      ".SH DESCRIPTION\nheddle loads a language model from disk, a Hugging Face folder or a GGUF "
      "file, and answers\nclients of the APIs of OpenAI and Anthropic over HTTP, and of gRPC, many "
      "at a time.\n.PP\n"
      "Wherever a command takes a \\fIMODEL\\fR, \\fBdemo\\fR is the small one that comes with "
      "heddle:\n.PP\n";
  AppendExample({"heddle serve demo"}, &out);
  out += ".SH COMMANDS\nEach has a page of its own.\n";
  for (Command command : kAllCommands) {
    out += StrCat(".TP\n\\fBheddle\\-", CommandName(command), "\\fR(1)\n",
                  Troff(CommandSummary(command)), ".\n");
  }
  out +=
      ".SH OPTIONS\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nList the commands.\n"
      ".TP\n\\fB\\-\\-version\\fR\nPrint the version.\n"
      ".TP\n\\fB\\-\\-completion\\fR \\fISHELL\\fR\n"
      "Print completions for bash, zsh or fish, for the shell to source.\n";
  AppendExitStatus(&out);
  out +=
      ".SH FILES\n"
      ".TP\n\\fI/usr/share/doc/heddle/\\fR\nThe pages that messages and options call docs/, where "
      "a package has installed heddle.\n.TP\n\\fI/etc/heddle/heddle.yaml\\fR\nWhat the service "
      "\\fBheddle\\fR is told: "
      "one key for each option of \\fBheddle\\-serve\\fR(1).\n";
  out += ".SH SEE ALSO\n";
  std::string pages;
  for (Command command : kAllCommands) {
    pages += StrCat(pages.empty() ? "" : ",\n", "\\fBheddle\\-", CommandName(command), "\\fR(1)");
  }
  return StrCat(out, pages, "\n");
}

std::string CommandManual(Command command, std::string_view version) {
  const std::string page = StrCat("heddle-", CommandName(command));
  const UsageParts usage = SplitUsage(CommandUsage(command));
  std::string out = Head(page, version, CommandSummary(command));
  out += ".SH SYNOPSIS\n";
  for (size_t i = 0; i < usage.synopsis.size(); ++i) {
    out += StrCat(i == 0 ? "" : ".br\n", Troff(usage.synopsis[i]), "\n");
  }
  out += ".SH DESCRIPTION\n";
  for (size_t i = 0; i < usage.paragraphs.size(); ++i) {
    out += StrCat(i == 0 ? "" : ".PP\n", Troff(usage.paragraphs[i]), "\n");
  }
  AppendOptions(command, &out);
  AppendEnvironment(command, &out);
  AppendExitStatus(&out);
  if (!usage.example.empty()) {
    out += ".SH EXAMPLES\n";
    AppendExample(usage.example, &out);
  }
  return StrCat(out, ".SH SEE ALSO\n\\fBheddle\\fR(1)\n");
}

}  // namespace heddle::config
