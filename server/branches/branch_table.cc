#include "server/branches/branch_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxGone = 4096;   // expired ids that are remembered
constexpr int64_t kOwnerShare = 4;  // a client with a key may have 1 / kOwnerShare of all branches
constexpr size_t kMaxChildren = 1024;

absl::Status NoSuchBranch(std::string_view id) {
  return WithCode(absl::NotFoundError(base::StrCat("there is no branch ", base::Quote(id))),
                  "branch_not_found");
}

absl::Status Expired(std::string_view id) {
  return WithHttpStatus(
      WithCode(absl::NotFoundError(base::StrCat("the time of branch ", base::Quote(id),
                                                " is over: begin a tree with a larger 'ttl'")),
               "branch_expired"),
      410);
}

int64_t Or(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

}  // namespace

absl::Status BranchTable::Conflict(std::string_view id, std::string_view what) {
  return WithHttpStatus(
      WithCode(absl::AbortedError(base::StrCat("the branch ", base::Quote(id), " ", what)),
               "branch_conflict"),
      409);
}

std::string BranchTable::NewId() {
  return base::StrCat("br_", absl::StrFormat("%016x", random_()));
}

absl::StatusOr<BranchTable::Branches::iterator> BranchTable::Find(uint64_t owner,
                                                                  std::string_view id,
                                                                  int64_t now) {
  Sweep(now);
  const auto found = branches_.find(id);
  if (found != branches_.end() && TreeOf(found->second).owner == owner) return found;
  const bool is_gone = std::any_of(gone_.begin(), gone_.end(), [&](const auto& gone) {
    return gone.first == id && gone.second == owner;
  });
  return is_gone ? Expired(id) : NoSuchBranch(id);
}

// Whether all trees together, and the client's, have room.
absl::Status BranchTable::CheckRoom(uint64_t owner, int64_t branches, int64_t tokens) const {
  const auto own = branches_of_.find(owner);
  const int64_t owned = own == branches_of_.end() ? 0 : own->second;
  const int64_t share =
      owner == 0 ? limits_.max_branches : std::max<int64_t>(1, limits_.max_branches / kOwnerShare);
  if (static_cast<int64_t>(branches_.size()) + branches > limits_.max_branches ||
      owned + branches > share) {
    return WithCode(absl::ResourceExhaustedError(base::StrCat(
                        "this server keeps ", limits_.max_branches, " branches, ", share,
                        " of one client, which has ", owned, ": delete some, or wait")),
                    "too_many_branches");
  }
  if (tokens_ + tokens > limits_.max_tokens) {
    return WithCode(
        absl::ResourceExhaustedError(base::StrCat(
            "all branches together may have ", limits_.max_tokens, " tokens, and have ", tokens_)),
        "too_many_branches");
  }
  return absl::OkStatus();
}

BranchTable::Branches::iterator BranchTable::Insert(std::string id, Branch branch) {
  Tree& tree = TreeOf(branch);
  tree.account.AddBranch(branch.positions());
  tokens_ += static_cast<int64_t>(branch.tokens.size());
  ++branches_of_[tree.owner];
  next_expiry_ = std::min(next_expiry_, branch.expires);
  branch.context = ContextId{++last_context_};
  return branches_.emplace(std::move(id), std::move(branch)).first;
}

BranchTable::Branches::iterator BranchTable::AddChild(Branches::iterator parent, std::string id,
                                                      Branch branch) {
  branch.root = parent->second.root;
  branch.parent = parent->first;
  // A way that is longer is shown as its beginning.
  constexpr size_t kMaxPath = 128;
  branch.path = parent->second.path;
  const int64_t number = parent->second.num_children++;
  if (branch.path.size() < kMaxPath) branch.path.append(base::StrCat(".", number));
  parent->second.children.push_back(id);
  return Insert(std::move(id), std::move(branch));
}

absl::StatusOr<BranchInfo> BranchTable::AddRoot(uint64_t owner, NewRoot root, int64_t now) {
  std::lock_guard lock(mutex_);
  Sweep(now);
  HEDDLE_RETURN_IF_ERROR(CheckRoom(owner, 1, static_cast<int64_t>(root.tokens.size())));
  const BranchBudget budget{Or(root.budget.tokens, limits_.usual.tokens),
                            Or(root.budget.branches, limits_.usual.branches),
                            Or(root.budget.bytes, limits_.usual.bytes),
                            Or(root.budget.seconds, limits_.usual.seconds)};
  std::string id = root.id.empty() ? NewId() : std::move(root.id);
  if (branches_.contains(id)) return Conflict(id, "is there already");
  Tree tree{owner, std::move(root.common), BranchAccount(budget, limits_.bytes_per_token),
            now + budget.seconds};
  HEDDLE_RETURN_IF_ERROR(tree.account.CheckFork(1, 0));
  Branch branch;
  branch.root = id;
  branch.created = now;
  branch.expires = std::min(tree.expires, now + Or(root.ttl, budget.seconds));
  branch.tokens = std::move(root.tokens);
  trees_.emplace(id, std::move(tree));
  const auto added = Insert(std::move(id), std::move(branch));
  return InfoOf(added->first, added->second);
}

absl::StatusOr<std::vector<BranchInfo>> BranchTable::Fork(uint64_t owner, const ForkOrder& order,
                                                          int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator from, Find(owner, order.from, now));
  const Branch& parent = from->second;
  const auto length = static_cast<int64_t>(parent.tokens.size());
  const int64_t at = order.at.value_or(length);
  if (at < 1 || at > length) {
    return FieldError("at", base::StrCat("'at' must be from 1 to ", length,
                                         ", the tokens of the branch, found ", at));
  }
  const auto appended = static_cast<int64_t>(order.append.size());
  Tree& tree = TreeOf(parent);
  HEDDLE_RETURN_IF_ERROR(CheckRoom(owner, order.n, order.n * (at + appended)));
  HEDDLE_RETURN_IF_ERROR(tree.account.CheckFork(order.n, appended));
  if (parent.children.size() + static_cast<size_t>(order.n) > kMaxChildren) {
    return FieldError("n", base::StrCat("a branch may have ", kMaxChildren, " children"));
  }
  scheduler::ContextParts parts = scheduler::FirstParts(parent.parts, static_cast<int32_t>(at));
  if (order.apart) {
    HEDDLE_RETURN_IF_ERROR(CheckConcurrent("concurrent"));
    if (order.append.empty()) {
      return FieldError("append",
                        "'append' must have a token with 'concurrent': the first one on a "
                        "page of the branch's own");
    }
    parts = scheduler::PartsApart(std::move(parts), static_cast<int32_t>(at));
    if (parts.size() > scheduler::kMaxContextParts) {
      return FieldError("from", base::StrCat("the branch has ", scheduler::kMaxContextParts,
                                             " parts side by side, as many as there may be"));
    }
  }
  std::vector<BranchInfo> infos;
  for (int64_t i = 0; i < order.n; ++i) {
    Branch branch;
    branch.created = now;
    branch.expires = std::min(parent.expires, now + Or(order.ttl, parent.expires - now));
    branch.forked_at = at;
    branch.parts = parts;
    branch.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + at);
    branch.tokens.insert(branch.tokens.end(), order.append.begin(), order.append.end());
    const auto index = static_cast<size_t>(i);
    branch.sampling = parent.sampling;
    if (!order.sampling.empty()) {
      branch.sampling = order.sampling[order.sampling.size() == 1 ? 0 : index];
    }
    const auto child =
        AddChild(from, order.ids.empty() ? NewId() : order.ids[index], std::move(branch));
    tree.account.Use(appended, 0);
    service_.ForkContext(parent.context, static_cast<int32_t>(at), child->second.context);
    infos.push_back(InfoOf(child->first, child->second));
  }
  totals_.forked += order.n;
  totals_.workers += order.works ? order.n : 0;
  return infos;
}

absl::StatusOr<BranchInfo> BranchTable::Join(uint64_t owner, const JoinOrder& order, int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator parent, Find(owner, order.parent, now));
  std::vector<Branches::iterator> children;
  for (const std::string& id : order.children) {
    HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator child, Find(owner, id, now));
    const bool is_new = std::find(children.begin(), children.end(), child) == children.end();
    if (child->second.parent != order.parent || !is_new) {
      return FieldError("children",
                        base::StrCat("'children' must be different branches that were "
                                     "forked from ",
                                     base::Quote(order.parent), ", found ", base::Quote(id)));
    }
    if (child->second.is_running) return Conflict(id, "still runs");
    children.push_back(child);
  }
  if (order.pick) {
    ++totals_.joined;
    const std::string picked = children.front()->first;
    const std::vector<std::string> siblings = parent->second.children;
    for (const std::string& id : siblings) {
      if (id != picked) Remove(id, /*expired=*/false);
    }
    return InfoOf(picked, children.front()->second);
  }
  const Branch& first = children.front()->second;
  for (const Branches::iterator child : children) {
    if (child->second.forked_at == first.forked_at) continue;
    return FieldError("children", "'children' must be forked behind the same token");
  }
  HEDDLE_ASSIGN_OR_RETURN(Branch joined, order.concurrent ? JoinConcurrent(children, order)
                                                          : JoinText(children, order));
  joined.created = now;
  joined.expires =
      std::min(parent->second.expires, now + Or(order.ttl, parent->second.expires - now));
  joined.forked_at = first.forked_at;
  joined.sampling = parent->second.sampling;
  // Texts of further children are read again behind the first one, but not side by side.
  const auto again = static_cast<int64_t>(
      order.concurrent ? order.tail.size() : joined.tokens.size() - first.tokens.size());
  Tree& tree = TreeOf(parent->second);
  HEDDLE_RETURN_IF_ERROR(CheckRoom(owner, 1, static_cast<int64_t>(joined.tokens.size())));
  HEDDLE_RETURN_IF_ERROR(tree.account.CheckFork(1, joined.positions()));
  tree.account.Use(again, 0);
  ++totals_.joined;
  const auto length = static_cast<int32_t>(first.tokens.size());
  const auto at = static_cast<int32_t>(first.forked_at);
  const ContextId context = first.context;
  const auto added = AddChild(parent, NewId(), std::move(joined));
  if (order.concurrent) {
    scheduler::ContextJoin join{.at = at,
                                .parts = added->second.parts,
                                .tokens = added->second.tokens,
                                .to = added->second.context};
    for (const Branches::iterator child : children) {
      join.children.push_back(child->second.context);
      join.lengths.push_back(static_cast<int32_t>(child->second.tokens.size()));
    }
    service_.JoinContexts(std::move(join));
  } else {
    service_.ForkContext(context, length, added->second.context);
  }
  return InfoOf(added->first, added->second);
}

absl::StatusOr<BranchInfo> BranchTable::Get(uint64_t owner, std::string_view id, int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator found, Find(owner, id, now));
  BranchInfo info = InfoOf(found->first, found->second);
  info.tokens = found->second.tokens;
  return info;
}

absl::Status BranchTable::Drop(uint64_t owner, std::string_view id, int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator found, Find(owner, id, now));
  Remove(std::string(found->first), /*expired=*/false);
  return absl::OkStatus();
}

absl::StatusOr<BranchTable::Source> BranchTable::Read(uint64_t owner, std::string_view id,
                                                      int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator found, Find(owner, id, now));
  const Branch& branch = found->second;
  return Source{branch.tokens, branch.parts, TreeOf(branch).common, branch.sampling,
                branch.context};
}

absl::Status BranchTable::Charge(uint64_t owner, std::string_view id, int64_t tokens, int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator found, Find(owner, id, now));
  BranchAccount& account = TreeOf(found->second).account;
  HEDDLE_RETURN_IF_ERROR(account.CheckTokens(tokens));
  account.Use(tokens, 0);
  return absl::OkStatus();
}

ContextId BranchTable::ContextOf(std::string_view id) const {
  std::lock_guard lock(mutex_);
  const auto found = branches_.find(id);
  return found == branches_.end() ? ContextId{} : found->second.context;
}

BranchTable::Names BranchTable::NamesOf(std::string_view id) const {
  std::lock_guard lock(mutex_);
  const auto found = branches_.find(id);
  return found == branches_.end() ? Names() : Names{found->second.root, found->second.path};
}

uint64_t BranchTable::ReserveContexts(int32_t count) {
  std::lock_guard lock(mutex_);
  const uint64_t first = last_context_ + 1;
  last_context_ += static_cast<uint64_t>(count);
  return first;
}

bool BranchTable::IsLive(std::string_view id, int64_t now) {
  std::lock_guard lock(mutex_);
  Sweep(now);
  return branches_.contains(id);
}

// Ends a branch, those that were forked from it, and what they run.
void BranchTable::Remove(std::string_view id, bool expired) {
  const auto first = branches_.find(id);
  if (first == branches_.end()) return;
  if (const auto parent = branches_.find(first->second.parent); parent != branches_.end()) {
    std::erase(parent->second.children, first->first);
  }
  const std::string root = first->second.root;
  const bool is_root = first->first == root;
  std::vector<std::string> to_remove = {first->first};
  while (!to_remove.empty()) {
    const auto found = branches_.find(to_remove.back());
    to_remove.pop_back();
    Branch& branch = found->second;
    to_remove.insert(to_remove.end(), branch.children.begin(), branch.children.end());
    Tree& tree = TreeOf(branch);
    if (branch.is_running) {
      --running_;
      tree.account.Reserve(-branch.reserved);
      if (branch.request != RequestId{}) service_.Cancel(branch.request);
    }
    service_.DropContext(branch.context);
    tree.account.RemoveBranch(branch.positions());
    tokens_ -= static_cast<int64_t>(branch.tokens.size()) + branch.reserved;
    if (--branches_of_[tree.owner] == 0) branches_of_.erase(tree.owner);
    ++(expired ? totals_.expired : totals_.dropped);
    if (expired) Remember(found->first, tree.owner);
    branches_.erase(found);
  }
  if (is_root) trees_.erase(root);
}

void BranchTable::Remember(const std::string& id, uint64_t owner) {
  gone_.emplace_back(id, owner);
  if (gone_.size() > kMaxGone) gone_.pop_front();
}

// Ends what is over. A branch never outlives its parent, so that parents go with their children.
void BranchTable::Sweep(int64_t now) {
  if (now < next_expiry_) return;
  std::vector<std::string> over;
  for (const auto& [id, branch] : branches_) {
    if (branch.expires <= now) over.push_back(id);
  }
  for (const std::string& id : over) Remove(id, /*expired=*/true);
  next_expiry_ = INT64_MAX;
  for (const auto& [id, branch] : branches_) next_expiry_ = std::min(next_expiry_, branch.expires);
}

BranchInfo BranchTable::InfoOf(const std::string& id, const Branch& branch) const {
  const BranchAccount& account = TreeOf(branch).account;
  BranchInfo info;
  info.id = id;
  info.root = branch.root;
  info.parent = branch.parent;
  info.children = branch.children;
  info.created = branch.created;
  info.expires = branch.expires;
  info.forked_at = branch.forked_at;
  info.is_running = branch.is_running;
  info.finish_reason = branch.finish_reason;
  info.num_tokens = static_cast<int64_t>(branch.tokens.size());
  info.num_parts = static_cast<int64_t>(branch.parts.size());
  info.num_drawn = branch.num_drawn;
  info.sum_logprob = branch.sum_logprob;
  info.budget = account.budget();
  info.tree_tokens = account.tokens();
  info.tree_branches = account.branches();
  info.tree_bytes = account.bytes();
  return info;
}

BranchFigures BranchTable::figures(int64_t now) {
  std::lock_guard lock(mutex_);
  Sweep(now);
  BranchFigures figures = totals_;
  figures.trees = static_cast<int64_t>(trees_.size());
  figures.branches = static_cast<int64_t>(branches_.size());
  figures.running = running_;
  figures.tokens = tokens_;
  return figures;
}

}  // namespace heddle::server
