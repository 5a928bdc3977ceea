#include "server/cli/trace_tree.h"

#include <algorithm>
#include <cinttypes>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using nlohmann::json;

constexpr int kBarWidth = 32;

struct Run {
  std::string branch;
  double begin = 0, end = 0;  // ms
  int64_t cached = 0, tokens = 0;
  std::string state;
};

double RunNumber(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string RunText(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A whole number that any JSON may name.
int64_t RunCount(const json& object, const char* name) {
  constexpr double kMost = 1e15;
  return static_cast<int64_t>(std::clamp(RunNumber(object, name), -kMost, kMost));
}

std::string_view ParentOf(std::string_view branch) {
  const size_t dot = branch.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : branch.substr(0, dot);
}

class Drawing {
 public:
  explicit Drawing(const std::vector<Run>& runs) : runs_(runs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      runs_of_[runs[i].branch].push_back(i);
      end_ = std::max(end_, runs[i].end);
    }
    // Branches whose parent ran before those that are remembered are drawn at the top.
    for (const auto& [branch, own] : runs_of_) {
      const std::string_view parent = ParentOf(branch);
      const bool is_top = parent.empty() || runs_of_.find(parent) == runs_of_.end();
      children_of_[is_top ? std::string() : std::string(parent)].push_back(&branch);
    }
    for (auto& [parent, children] : children_of_) {
      std::sort(children.begin(), children.end(),
                [this](const auto* a, const auto* b) { return FirstOf(*a) < FirstOf(*b); });
    }
  }

  std::string Draw() {
    out_ = "\n     at ms      for ms  cached  tokens  branch\n";
    for (const std::string* branch : children_of_[""]) DrawBranch(*branch, "", "");
    return std::move(out_);
  }

 private:
  size_t FirstOf(const std::string& branch) const { return runs_of_.find(branch)->second.front(); }

  // The runs of a branch, and behind each the branches that were forked from it. Nothing is drawn
  // twice, and a branch is below its parent: the depth is that of its name.
  void DrawBranch(const std::string& branch, const std::string& lead, const std::string& below) {
    const std::vector<size_t>& own = runs_of_.find(branch)->second;
    const auto found = children_of_.find(branch);
    static const std::vector<const std::string*> none;
    const auto& children = found == children_of_.end() ? none : found->second;
    size_t next = 0;
    for (size_t r = 0; r < own.size(); ++r) {
      DrawRun(runs_[own[r]], r == 0 ? lead : below);
      const size_t until = r + 1 < own.size() ? own[r + 1] : runs_.size();
      size_t end = next;
      while (end < children.size() && FirstOf(*children[end]) < until) ++end;
      for (; next < end; ++next) {
        const bool is_last = next + 1 == end;
        DrawBranch(*children[next], below + (is_last ? "`-- " : "|-- "),
                   below + (is_last ? "    " : "|   "));
      }
    }
  }

  void DrawRun(const Run& run, const std::string& lead) {
    const double scale = end_ > 0 ? kBarWidth / end_ : 0;
    const int begin = std::clamp(static_cast<int>(run.begin * scale), 0, kBarWidth - 1);
    const int end = std::clamp(static_cast<int>(run.end * scale), begin + 1, kBarWidth);
    absl::StrAppendFormat(&out_, "%10.1f  %10.1f  %6d  %6d  %-24s  %s%s%s\n", run.begin,
                          run.end - run.begin, run.cached, run.tokens, lead + run.branch,
                          std::string(static_cast<size_t>(begin), ' '),
                          std::string(static_cast<size_t>(end - begin), '#'),
                          run.state.empty() || run.state == "stopped" ? "" : " " + run.state);
  }

  const std::vector<Run>& runs_;
  std::map<std::string, std::vector<size_t>, std::less<>> runs_of_;
  std::map<std::string, std::vector<const std::string*>, std::less<>> children_of_;
  double end_ = 0;
  std::string out_;
};

}  // namespace

std::string TreeText(const json& runs) {
  constexpr double kMostMs = 1e12;
  constexpr size_t kMaxName = 256;
  std::vector<Run> read;
  if (!runs.is_array()) return "";
  for (const json& one : runs) {
    if (!one.is_object()) continue;
    Run run{
        RunText(one, "branch"),         RunNumber(one, "begin_ms"),        RunNumber(one, "end_ms"),
        RunCount(one, "cached_tokens"), RunCount(one, "generated_tokens"), RunText(one, "state")};
    if (run.branch.empty() || run.branch.size() > kMaxName) continue;
    run.begin = std::clamp(run.begin, 0.0, kMostMs);
    run.end = std::clamp(run.end, run.begin, kMostMs);
    read.push_back(std::move(run));
  }
  return read.size() < 2 ? "" : Drawing(read).Draw();
}

}  // namespace heddle::server
