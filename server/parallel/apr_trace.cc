#include "server/parallel/apr_trace.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "base/message.h"

namespace heddle::server {
namespace {

using base::StrCat;

constexpr std::string_view kMoving = "Moving to Node #";
constexpr std::string_view kGenerated = "Generated Node #";
constexpr std::string_view kState = "Current State:";
constexpr std::string_view kOperations = "Operations:";
constexpr std::string_view kOperation = "Operation:";
constexpr std::string_view kReached = "Goal Reached";
constexpr std::string_view kCallsLine = "<Calling Sub Searches>\n";
constexpr size_t kMaxNodes = 4096;  // of a trace, that are remembered

struct Node {
  int64_t target = 0;
  std::vector<int64_t> numbers;
  std::vector<std::string> operations;
};
using Nodes = std::map<std::string, Node, std::less<>>;

std::string_view Trimmed(std::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(base::AbslView(text));
  return {trimmed.data(), trimmed.size()};
}

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

// The text behind the first `mark`; nullopt: there is none.
std::optional<std::string_view> Behind(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + mark.size());
}

std::optional<int64_t> WholeNumber(std::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(base::AbslView(text), &number) ? std::optional(number) : std::nullopt;
}

// The elements of "[a, b]".
std::optional<std::vector<std::string_view>> ListOf(std::string_view text) {
  text = Trimmed(text);
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  std::vector<std::string_view> elements;
  text = Trimmed(text.substr(1, text.size() - 2));
  while (!text.empty()) {
    const size_t comma = text.find(',');
    elements.push_back(Trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text = Trimmed(text.substr(comma + 1));
  }
  return elements;
}

// Operations are quoted by either quote, and have none within.
std::optional<std::string> Unquoted(std::string_view text) {
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"')) return std::nullopt;
  const std::string_view inner = text.substr(1, text.size() - 2);
  if (text.back() != text.front() || inner.find_first_of("'\"\\") != std::string_view::npos) {
    return std::nullopt;
  }
  return std::string(inner);
}

// Reads "39:[25, 36, 2]".
bool ReadState(std::string_view text, Node* node) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const std::optional<int64_t> target = WholeNumber(text.substr(0, colon));
  const auto numbers = ListOf(text.substr(colon + 1));
  if (!target.has_value() || !numbers.has_value()) return false;
  node->target = *target;
  for (const std::string_view element : *numbers) {
    const std::optional<int64_t> number = WholeNumber(element);
    if (!number.has_value()) return false;
    node->numbers.push_back(*number);
  }
  return true;
}

// Reads "Current State: 39:[25, 36, 2], Operations: ['51-49=2']".
bool ReadMoved(std::string_view line, Node* node) {
  const auto state = Behind(line, kState);
  const auto operations = Behind(line, kOperations);
  if (!state.has_value() || !operations.has_value()) return false;
  const size_t end = state->find(']');
  if (end == std::string_view::npos || !ReadState(state->substr(0, end + 1), node)) return false;
  const auto elements = ListOf(*operations);
  if (!elements.has_value()) return false;
  for (const std::string_view element : *elements) {
    std::optional<std::string> operation = Unquoted(element);
    if (!operation.has_value()) return false;
    node->operations.push_back(*std::move(operation));
  }
  return true;
}

// Reads "39:[2, 11] Operation: 36-25=11", of a node whose parent has `operations`.
bool ReadGenerated(std::string_view text, const std::vector<std::string>& operations, Node* node) {
  const size_t at = text.find(kOperation);
  if (at == std::string_view::npos || !ReadState(text.substr(0, at), node)) return false;
  node->operations = operations;
  node->operations.emplace_back(Trimmed(text.substr(at + kOperation.size())));
  return node->operations.back().find_first_of("'\"\\") == std::string::npos;
}

// The nodes that the trace has moved to, and those that it has generated.
Nodes NodesOf(std::string_view trace) {
  Nodes nodes;
  const std::vector<std::string_view> lines = LinesOf(trace);
  for (size_t i = 0; i + 1 < lines.size() && nodes.size() < kMaxNodes; ++i) {
    const auto id = Behind(lines[i], kMoving);
    Node node;
    if (id.has_value() && ReadMoved(lines[i + 1], &node)) {
      nodes.insert_or_assign(std::string(Trimmed(*id)), std::move(node));
    }
  }
  for (const std::string_view line : lines) {
    const size_t colon = line.find(':');
    const auto id = Behind(line.substr(0, colon), kGenerated);
    if (!id.has_value() || colon == std::string_view::npos || nodes.size() >= kMaxNodes) continue;
    const size_t comma = id->rfind(',');
    const auto parent =
        nodes.find(comma == std::string_view::npos ? std::string_view() : id->substr(0, comma));
    Node node;
    if (parent == nodes.end() || nodes.contains(*id)) continue;
    if (ReadGenerated(line.substr(colon + 1), parent->second.operations, &node)) {
      nodes.emplace(std::string(*id), std::move(node));
    }
  }
  return nodes;
}

std::string PromptOf(std::string_view id, const Node& node) {
  const auto quoted = [](std::string* out, const std::string& operation) {
    out->append("'").append(operation).append("'");
  };
  return StrCat("Moving to Node #", id, "\nCurrent State: ", node.target, ":[",
                absl::StrJoin(node.numbers, ", "), "], Operations: [",
                absl::StrJoin(node.operations, ", ", quoted), "]");
}

// Budgets that a client names before the first node: that of tokens holds for each search.
// nullopt: it is none that the format knows.
std::optional<std::string_view> ConditionOf(std::string_view trace) {
  const std::string_view line = trace.substr(0, trace.find('\n'));
  const std::string_view condition = line.substr(0, line.find("Moving to Node"));
  if (condition.empty() || condition.starts_with("Sub Call Budget: ")) return std::string_view();
  if (condition.starts_with("Token Budget: ")) return condition;
  return std::nullopt;
}

}  // namespace

std::vector<AprCall> AprCalls(std::string_view trace, size_t limit) {
  std::vector<AprCall> calls;
  const size_t begin = trace.rfind(kCallsLine);
  const std::optional<std::string_view> condition = ConditionOf(trace);
  const std::string_view last = trace.substr(trace.rfind('\n') + 1);
  if (begin == std::string_view::npos || !condition.has_value() ||
      last.find(kAprEndOfCalls) == std::string_view::npos) {
    return calls;
  }
  std::string_view list = trace.substr(begin + kCallsLine.size());
  list = list.substr(0, list.find(StrCat("\n", kAprEndOfCalls)));
  const Nodes nodes = NodesOf(trace);
  for (const std::string_view line : LinesOf(list)) {
    const auto id = Behind(line, kMoving);
    if (line.find("<Start Sub Search") == std::string_view::npos || !id.has_value()) continue;
    if (calls.size() == limit) break;
    const auto node = nodes.find(Trimmed(*id));
    if (node == nodes.end()) return {};
    calls.push_back(
        {StrCat("#", node->first), StrCat(*condition, PromptOf(node->first, node->second))});
  }
  return calls;
}

// The way to the solution stands behind the last goal but one, and ends at the last.
std::optional<std::string> AprResult(std::string_view trace) {
  const size_t last = trace.rfind(kReached);
  if (last == std::string_view::npos || last == 0) return std::nullopt;
  const size_t before = trace.rfind(kReached, last - 1);
  if (before == std::string_view::npos) return std::nullopt;
  const std::string_view way = Trimmed(trace.substr(before));
  return std::string(way.substr(std::min(way.size(), kReached.size() + 1)));
}

AprJoin JoinApr(std::string_view trace, std::span<const AprCall> calls,
                std::span<const std::optional<std::string>> results) {
  AprJoin join;
  const size_t begin = trace.rfind(kCallsLine);
  join.kept = begin == std::string_view::npos ? trace.size() : begin;
  join.trace = StrCat(trace.substr(0, join.kept), kAprResults, "\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool is_found = results[i].has_value();
    join.trace += StrCat(is_found ? "<Goal Reached" : "<No Solution", " in Sub Search ", i,
                         " at level 1 at Node ", calls[i].node, ">\n");
    if (is_found) join.trace += StrCat(*results[i], "\n");
  }
  join.trace += "<End Sub Searches>\n";
  return join;
}

}  // namespace heddle::server
