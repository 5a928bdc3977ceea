#include "server/toolcalls/output_syntax.h"
#include "server/toolcalls/white_space.h"

#include <algorithm>
#include <string>

#include "base/message.h"

namespace heddle::server {
namespace {

// More specific rows come first: several families use the same tags with different contents.
// Sources: the chat templates that the families publish, and OpenAI's description of Harmony.
constexpr ToolSyntax kTools[] = {
    {.name = "gpt-oss",
     .open = {"<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.",
              "<|start|>assistant to=functions.", "<|channel|>commentary to="},
     .close = "<|call|>",
     .noise = {"<|channel|>commentary<|message|>", "<|channel|>final<|message|>",
               "<|start|>assistant", "<|end|>"},
     .inner = {"<|constrain|>", "<|message|>"},
     .decode = DecodeNamedJson,
     .in_template = {"<|channel|>", "<|message|>"}},
    {.name = "qwen3-coder",
     .open = {"<tool_call>"},
     .close = "</tool_call>",
     .decode = DecodeTaggedCalls,
     .in_template = {"<tool_call>", "<function=", "<parameter="}},
    {.name = "seed",
     .open = {"<seed:tool_call>"},
     .close = "</seed:tool_call>",
     .decode = DecodeTaggedCalls,
     .in_template = {"<function=", "seed:"}},
    {.name = "minimax",
     .open = {"<minimax:tool_call>"},
     .close = "</minimax:tool_call>",
     .decode = DecodeTaggedCalls,
     .in_template = {"<invoke name=", "minimax:"}},
    {.name = "glm",
     .open = {"<tool_call>"},
     .close = "</tool_call>",
     .decode = DecodeArgPairs,
     .in_template = {"<tool_call>", "<arg_key>"}},
    {.name = "deepseek",
     .open = {"<｜tool▁call▁begin｜>"},
     .close = "<｜tool▁call▁end｜>",
     .noise = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
     .inner = {"<｜tool▁sep｜>"},
     .decode = DecodeNamedJson,
     .in_template = {"<｜tool▁call▁begin｜>"}},
    {.name = "kimi",
     .open = {"<|tool_call_begin|>"},
     .close = "<|tool_call_end|>",
     .noise = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
     .inner = {"<|tool_call_argument_begin|>"},
     .decode = DecodeNamedJson,
     .in_template = {"<|tool_call_begin|>"}},
    {.name = "mistral",
     .open = {"[TOOL_CALLS]"},
     .end = CallEnd::kBrackets,
     .between = "[], \n",
     .inner = {"[ARGS]", "[CALL_ID]"},
     .decode = DecodeNamedJson,
     .id_characters = 9,
     .in_template = {"[TOOL_CALLS]"}},
    {.name = "phi",
     .open = {"<|tool_calls|>", "<|tool_call|>", "functools["},
     .end = CallEnd::kBrackets,
     .between = "[], \n",
     .noise = {"<|/tool_calls|>", "<|/tool_call|>"},
     .decode = DecodeJsonCall,
     .in_template = {"<|/tool"}},
    {.name = "granite",
     .open = {"<|tool_call|>", "<tool_call>"},
     .end = CallEnd::kBrackets,
     .between = "[], \n",
     .noise = {"</tool_call>"},
     .decode = DecodeJsonCall,
     .in_template = {"<|tool_call|>"}},
    {.name = "cohere",
     .open = {"<|START_ACTION|>"},
     .end = CallEnd::kBrackets,
     .between = "[], \n",
     .noise = {"<|END_ACTION|>"},
     .decode = DecodeJsonCall,
     .in_template = {"<|START_ACTION|>"}},
    {.name = "lfm",
     .open = {"<|tool_call_start|>"},
     .end = CallEnd::kBrackets,
     .between = " \n",
     .noise = {"<|tool_call_end|>"},
     .decode = DecodePythonic,
     .in_template = {"<|tool_call_start|>"}},
    {.name = "pythonic",
     .open = {"<|python_start|>"},
     .bare = '[',
     .end = CallEnd::kBrackets,
     .between = " \n",
     .noise = {"<|python_end|>"},
     .decode = DecodePythonic,
     .in_template = {"[func_name1("}},
    {.name = "hermes",
     .open = {"<tool_call>"},
     .close = "</tool_call>",
     .decode = DecodeJsonCall,
     .in_template = {"<tool_call>"}},
    {.name = "llama3-json",
     .open = {"<|python_tag|>"},
     .bare = '{',
     .end = CallEnd::kBrackets,
     .between = "; ,\n",
     .decode = DecodeOfferedJsonCall,
     .in_template = {"\"parameters\":", "<|eot_id|>", "tools"}},
};

constexpr ReasoningSyntax kReasonings[] = {
    {.name = "gpt-oss",
     .open = {"<|channel|>analysis<|message|>"},
     .close = {"<|end|>", "<|channel|>final<|message|>"},
     .noise = {"<|channel|>commentary<|message|>", "<|channel|>final<|message|>",
               "<|start|>assistant", "<|end|>"},
     .anywhere = true,
     .in_template = {"<|channel|>", "<|message|>"}},
    {.name = "mistral", .open = {"[THINK]"}, .close = {"[/THINK]"}, .in_template = {"[THINK]"}},
    {.name = "seed",
     .open = {"<seed:think>"},
     .close = {"</seed:think>"},
     .in_template = {"seed:think"}},
    {.name = "cohere",
     .open = {"<|START_THINKING|>"},
     .close = {"<|END_THINKING|>"},
     .noise = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     .in_template = {"<|START_THINKING|>"}},
    {.name = "granite",
     .open = {"Here is my thought process:", "Here's my thought process:"},
     .close = {"Here is my response:", "Here's my response:"},
     .in_template = {"Here is my thought process"}},
    {.name = "think-response",
     .open = {"<think>"},
     .close = {"</think>"},
     .noise = {"<response>", "</response>"},
     .in_template = {"</think>", "<response></response>"}},
    {.name = "think", .open = {"<think>"}, .close = {"</think>"}, .in_template = {"</think>"}},
};

template <size_t N>
bool AllIn(const std::array<std::string_view, N>& words, std::string_view text) {
  return std::all_of(words.begin(), words.end(), [text](std::string_view word) {
    return word.empty() || text.find(word) != std::string_view::npos;
  });
}

// nullptr for "none"; INVALID_ARGUMENT for a name without a row.
template <typename Row>
absl::StatusOr<const Row*> RowNamed(std::string_view name, std::span<const Row> rows,
                                    std::string_view option) {
  if (name == "none") return nullptr;
  std::string names = "auto, none";
  for (const Row& row : rows) {
    if (row.name == name) return &row;
    names.append(", ").append(row.name);
  }
  return absl::InvalidArgumentError(
      base::StrCat("--", option, " must be one of ", names, ", found ", base::Quote(name)));
}

}  // namespace

std::span<const ToolSyntax> ToolSyntaxes() { return kTools; }
std::span<const ReasoningSyntax> ReasoningSyntaxes() { return kReasonings; }

std::vector<std::string_view> OutputSyntax::AllMarks() const {
  std::vector<std::string_view> all;
  auto add = [&all](const Marks& marks) {
    for (std::string_view mark : marks) {
      if (!mark.empty()) all.push_back(mark);
    }
  };
  if (tools != nullptr) {
    add(tools->open);
    add(tools->noise);
    add(tools->inner);
    if (!tools->close.empty()) all.push_back(tools->close);
  }
  if (reasoning != nullptr) {
    add(reasoning->open);
    add(reasoning->close);
    add(reasoning->noise);
  }
  return all;
}

OutputSyntax SyntaxOf(std::string_view chat_template) {
  OutputSyntax syntax;
  for (const ToolSyntax& row : kTools) {
    if (!AllIn(row.in_template, chat_template)) continue;
    syntax.tools = &row;
    break;
  }
  for (const ReasoningSyntax& row : kReasonings) {
    if (!AllIn(row.in_template, chat_template)) continue;
    syntax.reasoning = &row;
    break;
  }
  return syntax;
}

absl::StatusOr<OutputSyntax> OverrideSyntax(OutputSyntax syntax, std::string_view tool_parser,
                                            std::string_view reasoning_parser) {
  if (tool_parser != "auto") {
    auto row = RowNamed(tool_parser, ToolSyntaxes(), "tool-parser");
    if (!row.ok()) return row.status();
    syntax.tools = *row;
  }
  if (reasoning_parser != "auto") {
    auto row = RowNamed(reasoning_parser, ReasoningSyntaxes(), "reasoning-parser");
    if (!row.ok()) return row.status();
    syntax.reasoning = *row;
  }
  return syntax;
}

std::string ToolCallId(const OutputSyntax& syntax, std::string_view unique, size_t choice,
                       size_t call) {
  std::string id = base::StrCat("call_", unique, "_", choice, "_", call);
  if (syntax.tools == nullptr || syntax.tools->id_characters == 0) return id;
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string digits;
  for (size_t i = 0; i < syntax.tools->id_characters; ++i, hash /= kDigits.size()) {
    digits.push_back(kDigits[hash % kDigits.size()]);
  }
  return digits;
}

bool EndsInReasoning(std::string_view prompt_tail, const OutputSyntax& syntax) {
  if (syntax.reasoning == nullptr) return false;
  size_t last = prompt_tail.find_last_not_of(kWhite);
  if (last == std::string_view::npos) return false;
  std::string_view trimmed = prompt_tail.substr(0, last + 1);
  return std::any_of(
      syntax.reasoning->open.begin(), syntax.reasoning->open.end(),
      [trimmed](std::string_view mark) { return !mark.empty() && trimmed.ends_with(mark); });
}

}  // namespace heddle::server
