#include "server/toolcalls/tool_grammar.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::kUnbounded;

// The format of gpt-oss, in which an answer consists of messages.
constexpr std::string_view kHarmony = "gpt-oss";

// Placeholder of a number in the texts of the table.
constexpr char kNumber = '\x01';

enum class Arguments : uint8_t { kJson, kTagged, kPython };

// One notation of calls. Rows of one syntax are alternatives from which the model chooses.
// Sources: the chat templates that the families publish.
struct CallWriting {
  std::string_view syntax;         // ToolSyntax::name
  std::string_view section_open;   // before the first call
  std::string_view call_open;      // before the name
  std::string_view behind_name;    // between name and arguments
  std::string_view call_close;     // behind the arguments
  std::string_view between;        // between calls
  std::string_view section_close;  // behind the last call
  Arguments arguments = Arguments::kJson;
  // kTagged: around key and value.
  std::string_view key_open, key_close, value_close;
};

constexpr CallWriting kWritings[] = {
    {"gpt-oss", "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>",
     "<|call|>", "<|start|>assistant", ""},
    {"qwen3-coder", "", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", "",
     Arguments::kTagged, "<parameter=", ">\n", "\n</parameter>\n"},
    {"seed", "", "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", "\n", "",
     Arguments::kTagged, "<parameter=", ">", "</parameter>\n"},
    {"minimax", "<minimax:tool_call>\n", "<invoke name=\"", "\">\n", "</invoke>\n", "",
     "</minimax:tool_call>", Arguments::kTagged, "<parameter name=\"", "\">", "</parameter>\n"},
    {"glm", "", "<tool_call>", "\n", "</tool_call>", "\n", "", Arguments::kTagged, "<arg_key>",
     "</arg_key>\n<arg_value>", "</arg_value>\n"},
    {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n", "<｜tool▁calls▁end｜>"},
    {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
     "<｜tool▁call▁end｜>", "", "<｜tool▁calls▁end｜>"},
    {"kimi", "<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.",
     ":\x01<|tool_call_argument_begin|>", "<|tool_call_end|>", "", "<|tool_calls_section_end|>"},
    {"mistral", "", "[TOOL_CALLS]", "[ARGS]", "", "", ""},
    {"mistral", "[TOOL_CALLS][", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", "]"},
    {"phi", "<|tool_call|>[", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", "]<|/tool_call|>"},
    {"granite", "<|tool_call|>[", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", "]"},
    {"cohere", "<|START_ACTION|>[\n", "    {\"tool_call_id\": \"\x01\", \"tool_name\": \"",
     "\", \"parameters\": ", "}", ",\n", "\n]<|END_ACTION|>"},
    {"lfm", "<|tool_call_start|>[", "", "(", ")", ", ", "]<|tool_call_end|>", Arguments::kPython},
    {"pythonic", "[", "", "(", ")", ", ", "]", Arguments::kPython},
    {"hermes", "", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n",
     ""},
    {"llama3-json", "", "{\"name\": \"", "\", \"parameters\": ", "}", "; ", ""},
};

Constraint TextWithNumbers(std::string_view text) {
  const size_t at = text.find(kNumber);
  if (at == std::string_view::npos) return Constraint::Text(text);
  return Constraint::Sequence({Constraint::Text(text.substr(0, at)),
                               {.kind = ConstraintKind::kRegex, .text = "0|[1-9][0-9]?"},
                               TextWithNumbers(text.substr(at + 1))});
}

Constraint ArgumentsOf(const CallWriting& writing, const CallableTool& tool) {
  Constraint arguments{.text = tool.schema};
  arguments.label = base::StrCat("tool ", base::Quote(tool.name));
  arguments.json.drops_unsupported = !tool.is_strict;
  engine::grammar::MemberForm& form = arguments.json.form;
  if (writing.arguments == Arguments::kTagged) {
    form.key_open = writing.key_open;
    form.key_close = writing.key_close;
    form.value_close = writing.value_close;
    form.raw_strings = true;
  }
  if (writing.arguments == Arguments::kPython) {
    form.key_close = "=";
    form.separator = ", ";
  }
  return arguments;
}

// A name within quotes is written as in JSON.
std::string NameOf(const CallWriting& writing, const std::string& name) {
  if (!writing.call_open.ends_with('"') || writing.arguments != Arguments::kJson) return name;
  const std::string quoted = nlohmann::ordered_json(name).dump();
  return quoted.substr(1, quoted.size() - 2);
}

Constraint CallOf(const CallWriting& writing, const std::vector<CallableTool>& tools,
                  std::string_view close) {
  std::vector<Constraint> bodies;
  bodies.reserve(tools.size());
  for (const CallableTool& tool : tools) {
    bodies.push_back(
        Constraint::Sequence({Constraint::Text(NameOf(writing, tool.name)),
                              TextWithNumbers(writing.behind_name), ArgumentsOf(writing, tool)}));
  }
  return Constraint::Sequence({TextWithNumbers(writing.call_open),
                               Constraint::OneOf(std::move(bodies)), Constraint::Text(close)});
}

Constraint SectionOf(const CallWriting& writing, const std::vector<CallableTool>& tools,
                     int32_t max_calls, const std::vector<std::string>& end_marks) {
  // A call that is closed by the end of the answer is the only one.
  const bool ends =
      std::find(end_marks.begin(), end_marks.end(), writing.call_close) != end_marks.end();
  const Constraint call = CallOf(writing, tools, ends ? "" : writing.call_close);
  std::vector<Constraint> parts = {Constraint::Text(writing.section_open), call};
  if (max_calls != 1 && !ends) {
    parts.push_back(
        Constraint::Repeat(Constraint::Sequence({Constraint::Text(writing.between), call}), 0,
                           max_calls == kUnbounded ? kUnbounded : max_calls - 1));
  }
  parts.push_back(Constraint::Text(writing.section_close));
  return Constraint::Sequence(std::move(parts));
}

// Behind another message its beginning is written; the first one's is in the prompt.
Constraint InNewMessage(Constraint message) {
  return Constraint::Sequence(
      {Constraint::Repeat(Constraint::Text("<|start|>assistant"), 0, 1), std::move(message)});
}

std::vector<const CallWriting*> WritingsOf(const ToolSyntax& syntax) {
  std::vector<const CallWriting*> writings;
  for (const CallWriting& writing : kWritings) {
    if (writing.syntax == syntax.name) writings.push_back(&writing);
  }
  return writings;
}

// Text that opens no call: without the marks, and not beginning like a bare call.
Constraint FreeText(const ToolSyntax& syntax) {
  Constraint text{.kind = ConstraintKind::kWithout};
  for (std::string_view mark : syntax.open) {
    if (!mark.empty()) text.choices.emplace_back(mark);
  }
  if (syntax.bare == 0) return text;
  const Constraint begin{
      .kind = ConstraintKind::kRegex,
      .text = syntax.bare == '{' ? "[ \\t\\r\\n]*[^ \\t\\r\\n{]" : "[ \\t\\r\\n]*[^ \\t\\r\\n\\[]"};
  return Constraint::Repeat(Constraint::Sequence({begin, std::move(text)}), 0, 1);
}

}  // namespace

bool HasCallGrammar(const ToolSyntax& syntax) { return !WritingsOf(syntax).empty(); }

Constraint CallsConstraint(const ToolSyntax& syntax, const std::vector<CallableTool>& tools,
                           int32_t max_calls, const std::vector<std::string>& end_marks) {
  std::vector<Constraint> ways;
  for (const CallWriting* writing : WritingsOf(syntax)) {
    ways.push_back(SectionOf(*writing, tools, max_calls, end_marks));
  }
  Constraint calls = Constraint::OneOf(std::move(ways));
  return syntax.name == kHarmony ? InNewMessage(std::move(calls)) : calls;
}

Constraint AsContent(const OutputSyntax& syntax, Constraint answer) {
  if (syntax.reasoning == nullptr || syntax.reasoning->name != kHarmony) return answer;
  return InNewMessage(
      Constraint::Sequence({Constraint::Text("<|channel|>final<|message|>"), std::move(answer)}));
}

Constraint TextWithCalls(const ToolSyntax& syntax, const std::vector<CallableTool>& tools,
                         int32_t max_calls, const std::vector<std::string>& end_marks) {
  Constraint calls = CallsConstraint(syntax, tools, max_calls, end_marks);
  // A bare call is a whole answer; with a mark, text may precede the calls.
  if (syntax.bare != 0) return Constraint::OneOf({FreeText(syntax), std::move(calls)});
  return Constraint::Sequence({FreeText(syntax), Constraint::Repeat(std::move(calls), 0, 1)});
}

Constraint BehindReasoning(const ReasoningSyntax& syntax, bool is_open, Constraint answer) {
  Constraint reasoning =
      Constraint::Sequence({{.kind = ConstraintKind::kUpTo, .text = std::string(syntax.close[0])},
                            Constraint::Repeat(Constraint::Text("\n"), 0, 2)});
  if (!is_open) {
    reasoning = Constraint::Repeat(
        Constraint::Sequence({Constraint::Text(syntax.open[0]), std::move(reasoning)}), 0, 1);
  }
  return Constraint::Sequence({std::move(reasoning), std::move(answer)});
}

}  // namespace heddle::server
