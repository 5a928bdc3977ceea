// The part of the tree that is about branches with prompts of their own (server/parallel/
// apr_trace.h).
#include <algorithm>
#include <optional>
#include <utility>

#include "base/message.h"
#include "server/branches/parallel_tree.h"
#include "server/parallel/parallel_format.h"

namespace heddle::server {

// The branch's text up to the mark that was found last.
std::string ParallelTree::TraceOf(const Branch& branch) const {
  return base::StrCat(branch.before, std::string_view(branch.text).substr(0, branch.searched));
}

// Such branches call none themselves: the format numbers one level.
bool ParallelTree::PlanCalls(const Branch& branch, ForkPlan* plan) const {
  const auto most = static_cast<size_t>(limits_.max_branches);
  if (branch.depth > 0) return false;
  plan->calls = AprCalls(TraceOf(branch), most + 1);
  const auto count = static_cast<int64_t>(plan->calls.size());
  if (count == 0 || plan->calls.size() > most) return false;
  if (num_branches() + count > ParallelLimits::kMaxAllBranches) return false;
  size_t longest = 0;
  for (const AprCall& call : plan->calls) {
    const std::vector<TokenId>& prompt = plan->headers.emplace_back(syntax_.Prompt(call.prompt));
    if (prompt.empty()) return false;
    plan->forced += static_cast<int64_t>(prompt.size());
    longest = std::max(longest, prompt.size());
  }
  plan->share = max_context_;
  const auto own = static_cast<int64_t>(longest);
  return total_ + plan->forced + count <= limits_.max_total_tokens &&
         branch.length + own < pattern_.max_tokens && own < max_context_ &&
         (limits_.max_branch_tokens == 0 || own < limits_.max_branch_tokens);
}

// The branch goes on behind what its calls have found.
void ParallelTree::JoinCalls(size_t index, ParallelOrders* orders) {
  Branch& branch = At(index);
  std::vector<std::optional<std::string>> results;
  for (const size_t child : branch.forked) {
    Branch& one = At(child);
    results.push_back(AprResult(base::StrCat(one.before, one.text)));
    branch.length = std::max(branch.length, one.length);
    branch.stale.push_back(one.context);
    std::vector<TokenId>().swap(one.tokens);
    std::string().swap(one.text);
  }
  AprJoin join = JoinApr(TraceOf(branch), branch.calls, results);
  branch.state = State::kRuns;
  const std::vector<TokenId> found = syntax_.Text(std::string_view(join.trace).substr(join.kept));
  GoOnBehind(index, std::move(join.trace), found, orders);
}

// The model has written the beginning of results where it means to call: it goes on behind the
// beginning of calls.
bool ParallelTree::Restart(size_t index, TokenId token, bool is_last, ParallelOrders* orders) {
  const std::string_view mark = syntax_.restart_at();
  if (mark.empty()) return false;
  Branch& branch = At(index);
  branch.stream->Push(token, &branch.text);
  const size_t at = branch.text.find(mark, branch.searched);
  if (at == std::string::npos) return false;
  Stop(&branch, is_last, orders);
  std::string trace =
      base::StrCat(branch.before, std::string_view(branch.text).substr(0, at), kAprBeginOfCalls);
  GoOnBehind(index, std::move(trace), syntax_.tail(), orders);
  return true;
}

// The branch goes on behind `trace`, whose end nobody has drawn. What it has computed of it is
// taken over.
void ParallelTree::GoOnBehind(size_t index, std::string trace, std::span<const TokenId> put_in,
                              ParallelOrders* orders) {
  if (!Force(index, put_in)) return;
  Branch& branch = At(index);
  branch.tokens = syntax_.Prompt(trace);
  branch.before = std::move(trace);
  branch.stale.push_back(branch.context);
  StartText(&branch);
  if (branch.is_cut || branch.tokens.empty()) {
    return EndBranch(index, /*is_marked=*/false, /*length=*/true, orders);
  }
  Submit(index, branch.context, orders);
}

}  // namespace heddle::server
