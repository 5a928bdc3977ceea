#include "server/branches/parallel_tree.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "server/parallel/parallel_format.h"

namespace heddle::server {
namespace {

// A branch that could draw no more than this is not worth a fork.
constexpr int32_t kLeastBranchTokens = 16;

template <typename Values, typename Value>
bool Contains(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void Append(std::span<const TokenId> tokens, std::vector<TokenId>* all) {
  all->insert(all->end(), tokens.begin(), tokens.end());
}

std::vector<std::string> Numbers(size_t count) {
  std::vector<std::string> numbers;
  for (size_t i = 1; i <= count; ++i) numbers.push_back(base::StrCat(i));
  return numbers;
}

// The seed of a branch, far from those of others (the finaliser of SplitMix64).
uint64_t SeedOf(uint64_t parent, uint64_t number) {
  uint64_t seed = parent + (number + 1) * 0x9e3779b97f4a7c15;
  seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
  seed = (seed ^ (seed >> 27)) * 0x94d049bb133111eb;
  return seed ^ (seed >> 31);
}

}  // namespace

ParallelTree::ParallelTree(const ApiRequest* request, const TextCodec* codec, int32_t page_tokens,
                           int32_t max_context, NewContext new_context, ParallelAnswer* answer)
    : pattern_(request->generations.front()),
      codec_(*codec),
      syntax_(*request->parallel.syntax),
      limits_(request->parallel.limits),
      page_tokens_(page_tokens),
      max_context_(max_context),
      new_context_(std::move(new_context)),
      answer_(*answer) {}

void ParallelTree::Begin(ParallelOrders* orders) {
  Branch& root = branches_.emplace_back();
  root.path.push_back('0');
  root.tokens = pattern_.prompt;
  root.parts = pattern_.parts;
  root.seed = pattern_.sampling.seed;
  root.limit = max_context_;
  if (syntax_.is_calls()) {
    const std::unique_ptr<TokenStream> text = codec_.NewStream(/*after_text=*/false, {});
    for (const TokenId token : pattern_.prompt) text->Push(token, &root.before);
    text->Finish(&root.before);
  }
  StartText(&root);
  answer_.Add(0, root.path);
  Submit(0, pattern_.from, orders);
}

void ParallelTree::StartText(Branch* branch) {
  branch->stream = codec_.NewStream(/*after_text=*/true, {.all = true});
  branch->text.clear();
  branch->searched = 0;
  branch->nesting = 0;
}

ContextId ParallelTree::Name() {
  const ContextId id = new_context_();
  if (id != ContextId{}) contexts_.push_back(id);
  return id;
}

int32_t ParallelTree::PlacesOf(const scheduler::ContextParts& parts, size_t length) const {
  const auto tokens = static_cast<int32_t>(length);
  return parts.empty() ? tokens : scheduler::ContextLayout(parts, page_tokens_).PlaceOf(tokens);
}

void ParallelTree::Count(int64_t tokens, Branch* branch) {
  total_ += tokens;
  branch->length += tokens;
  critical_ = std::max(critical_, branch->length);
}

// Tokens that the format may put in from the end of a branch to what follows its join.
int64_t ParallelTree::ClosingTokens() const {
  return static_cast<int64_t>(syntax_.CutEnd(0).size() + syntax_.after().size() +
                              syntax_.tail().size());
}

// Tokens that a branch may still draw.
int64_t ParallelTree::RoomOf(const Branch& branch) const {
  int64_t room = pattern_.max_tokens - branch.length - branch.depth * ClosingTokens();
  room = std::min(room, limits_.max_total_tokens - total_);
  room = std::min<int64_t>(room, branch.limit - PlacesOf(branch.parts, branch.tokens.size()));
  if (branch.parent != kNone && limits_.max_branch_tokens > 0) {
    room = std::min(room, limits_.max_branch_tokens - (branch.length - branch.begun_at));
  }
  return room;
}

// Runs a branch behind the tokens that it has.
void ParallelTree::Submit(size_t index, ContextId from, ParallelOrders* orders) {
  Branch& branch = At(index);
  const int64_t room = RoomOf(branch);
  if (room <= 0 && (index != 0 || total_ > 0)) {
    return EndBranch(index, /*is_marked=*/false, /*length=*/true, orders);
  }
  ParallelOrders::Run& run = orders->runs.emplace_back();
  run.number = branch.run = run_of_.size();
  run_of_.push_back(index);
  GenerationRequest& request = run.request;
  request = pattern_;
  request.branch = branch.path;
  request.prompt = branch.tokens;
  request.parts = branch.parts;
  request.from = from;
  request.keep = branch.context = Name();
  request.max_tokens = static_cast<int32_t>(std::max<int64_t>(0, room));
  request.sampling.seed = branch.seed;
  int32_t& least = request.sampling.min_tokens;
  least = index == 0 ? static_cast<int32_t>(std::max<int64_t>(0, least - branch.length)) : 0;
  least = std::min(least, request.max_tokens);
  if (run.number > 0) request.prediction.clear();
  // The prompt is computed before the branches that begin behind it.
  if (run.number == 0 && syntax_.at_start()) request.max_tokens = least = 0;
  AddMarks(index, &request);
}

// Lets the engine end the branch's run at the format's marks.
void ParallelTree::AddMarks(size_t index, GenerationRequest* request) const {
  if (syntax_.at_start()) {
    if (index == 0) {
      if (syntax_.answer_end() >= 0) request->stop_tokens.push_back(syntax_.answer_end());
      return;
    }
    for (const TokenId token : syntax_.branch_ends()) request->stop_tokens.push_back(token);
    for (const TokenId token : syntax_.beginnings()) {
      request->sampling.bad_words.push_back({token});
    }
    return;
  }
  if (request->sampling.min_tokens > 0) return;  // it would forbid the marks, too
  const bool may_fork = At(index).depth < limits_.max_depth;
  if (may_fork && syntax_.fork_token() >= 0) request->stop_tokens.push_back(syntax_.fork_token());
  if (index != 0 && syntax_.end_token() >= 0) request->stop_tokens.push_back(syntax_.end_token());
}

void ParallelTree::Stop(Branch* branch, bool has_ended, ParallelOrders* orders) {
  if (!has_ended && branch->run != kNone) orders->stops.push_back(branch->run);
  branch->run = kNone;
}

void ParallelTree::Finish(bool length) {
  done_ = true;
  length_ = length;
}

// Puts in tokens of the format. Returns false where the answer has no room for them, and is done.
bool ParallelTree::Force(size_t index, std::span<const TokenId> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (total_ + count > limits_.max_total_tokens) {
    Finish(/*length=*/true);
    return false;
  }
  Branch& branch = At(index);
  Append(tokens, &branch.tokens);
  Count(count, &branch);
  answer_.Force(index, tokens);
  return true;
}

void ParallelTree::Take(size_t run, GenerationEvent event, double now, ParallelOrders* orders) {
  const size_t index = run_of_[run];
  if (!Awaits(run)) return;
  for (const ContextId id : std::exchange(At(index).stale, {})) {
    orders->drops.push_back(id);
    std::erase(contexts_, id);
  }
  if (run == 0) answer_.AddCached(event.cached_tokens);
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const bool is_last = event.finished && i + 1 == event.tokens.size();
    if (!TakeToken(index, event.tokens[i], is_last, now, orders)) return;
  }
  if (!event.finished) return;
  if (run == 0 && syntax_.at_start()) {
    if (!Fork(0, /*has_ended=*/true, now, orders)) GoOnInOnePiece(orders);
    return;
  }
  Stop(&At(index), /*has_ended=*/true, orders);
  EndBranch(index, /*is_marked=*/false, event.reason == FinishReason::kLength, orders);
}

// The prompt's run goes on without branches, where a limit does not allow them.
void ParallelTree::GoOnInOnePiece(ParallelOrders* orders) {
  Branch& root = At(0);
  root.stale.push_back(root.context);
  Submit(0, root.context, orders);
}

// Returns false if the run is over with this token.
bool ParallelTree::TakeToken(size_t index, const engine::SampledToken& token, bool is_last,
                             double now, ParallelOrders* orders) {
  Branch& branch = At(index);
  if (total_ >= limits_.max_total_tokens) {  // what the format has put in has spent it
    Finish(/*length=*/true);
    return false;
  }
  if (index != 0 && Contains(syntax_.branch_ends(), token.token)) {  // its own end comes instead
    Stop(&branch, is_last, orders);
    EndBranch(index, /*is_marked=*/false, /*length=*/false, orders);
    return false;
  }
  Count(1, &branch);
  const bool stopped = answer_.Push(index, token);
  const bool is_end = Contains(pattern_.stop_tokens, token.token);
  if (!is_end) branch.tokens.push_back(token.token);
  if (stopped && Restart(index, token.token, is_last, orders)) return false;
  if (stopped || is_end) {
    Stop(&branch, is_last, orders);
    EndBranch(index, /*is_marked=*/false, /*length=*/false, orders);
    return false;
  }
  branch.stream->Push(token.token, &branch.text);
  while (true) {
    const Found found = Search(&branch, index == 0);
    if (found == Found::kEnd) {
      Stop(&branch, is_last, orders);
      EndBranch(index, /*is_marked=*/true, /*length=*/false, orders);
      return false;
    }
    if (found == Found::kNothing) break;
    if (Fork(index, is_last, now, orders)) return false;
  }
  if (total_ >= limits_.max_total_tokens) {
    Finish(/*length=*/true);
    return false;
  }
  // The engine has stopped at a mark that is plain text here.
  const bool is_mark = token.token == syntax_.fork_token() || token.token == syntax_.end_token();
  if (!is_last || !is_mark) return true;
  branch.stale.push_back(branch.context);
  Submit(index, branch.context, orders);
  return false;
}

// Looks for the next mark in what has not been searched yet.
ParallelTree::Found ParallelTree::Search(Branch* branch, bool is_root) {
  if (syntax_.at_start()) return Found::kNothing;
  const ParallelFormat& format = syntax_.format();
  const std::string_view text = branch->text;
  while (true) {
    const std::string* first = nullptr;
    size_t at = std::string_view::npos, longest = 1;
    for (const std::string* mark : {&format.branch_end, &format.branch_begin, &format.fork_at}) {
      if (mark->empty() || (is_root && mark != &format.fork_at)) continue;
      longest = std::max(longest, mark->size());
      const size_t found = text.find(*mark, branch->searched);
      if (found >= at) continue;
      at = found;
      first = mark;
    }
    if (first == nullptr) {
      const size_t end = text.size() - std::min(text.size(), longest - 1);
      branch->searched = std::max(branch->searched, end);
      return Found::kNothing;
    }
    branch->searched = at + first->size();
    if (first == &format.fork_at) return Found::kFork;
    if (first == &format.branch_begin) {
      ++branch->nesting;
    } else if (branch->nesting-- == 0) {
      return Found::kEnd;
    }
  }
}

// Whether the branches that the text asks for are as the format says, and allowed.
bool ParallelTree::PlanFork(const Branch& branch, ForkPlan* plan) {
  if (branch.depth >= limits_.max_depth || branch.nesting > 0 || items_take_too_long_) return false;
  return syntax_.is_calls() ? PlanCalls(branch, plan) : PlanHeaders(branch, plan);
}

bool ParallelTree::PlanHeaders(const Branch& branch, ForkPlan* plan) {
  const auto most = static_cast<size_t>(limits_.max_branches);
  const absl::StatusOr<std::vector<std::string>> found =
      syntax_.at_start()
          ? Numbers(most)
          : syntax_.Items(std::string_view(branch.text).substr(0, branch.searched), most + 1);
  if (!found.ok()) items_take_too_long_ = true;
  if (!found.ok() || found->empty()) return false;
  const std::vector<std::string>& ids = *found;
  const auto count = static_cast<int64_t>(ids.size());
  if (ids.size() > most || num_branches() + count > ParallelLimits::kMaxAllBranches) {
    return false;
  }
  plan->forced = static_cast<int64_t>(syntax_.before().size());
  size_t longest = 0;
  for (const std::string& id : ids) {
    std::vector<TokenId>& header = plan->headers.emplace_back(syntax_.Header(id));
    if (header.empty()) return false;
    plan->forced += static_cast<int64_t>(header.size());
    longest = std::max(longest, header.size());
  }
  return PlanRoom(branch, longest, plan);
}

bool ParallelTree::PlanRoom(const Branch& branch, size_t longest, ForkPlan* plan) const {
  const size_t count = plan->headers.size();
  const size_t before = syntax_.before().size();
  if (total_ + plan->forced + static_cast<int64_t>(count) > limits_.max_total_tokens) return false;
  const int64_t least =
      static_cast<int64_t>(before + longest + 1) + (branch.depth + 1) * ClosingTokens();
  if (branch.length + least > pattern_.max_tokens) return false;
  if (limits_.max_branch_tokens > 0 && static_cast<int64_t>(longest) >= limits_.max_branch_tokens) {
    return false;
  }
  // Each branch, and what comes behind them, may begin a page, and holds what the format puts in.
  const size_t own = syntax_.CutEnd(0).size() + syntax_.after().size();
  size_t kept = before + syntax_.tail().size() + 1 + count * own;
  if (syntax_.is_concurrent()) kept += (count + 1) * static_cast<size_t>(page_tokens_);
  const int64_t room =
      branch.limit - PlacesOf(branch.parts, branch.tokens.size()) - static_cast<int64_t>(kept);
  plan->share = static_cast<int32_t>(std::max<int64_t>(0, room) / static_cast<int64_t>(count));
  const size_t num_parts = branch.parts.size() + 2 * count + 2;
  return plan->share >= static_cast<int32_t>(longest) + kLeastBranchTokens &&
         num_parts <= scheduler::kMaxContextParts;
}

// Returns false, and has done nothing, if the branch goes on as it is.
bool ParallelTree::Fork(size_t index, bool has_ended, double now, ParallelOrders* orders) {
  ForkPlan plan;
  if (!PlanFork(At(index), &plan)) return false;
  Stop(&At(index), has_ended, orders);
  if (!Force(index, syntax_.before())) return true;
  Branch& parent = At(index);
  parent.state = State::kForked;
  parent.forked_at = now;
  parent.forked.clear();
  parent.num_open = plan.headers.size();
  parent.calls = std::move(plan.calls);
  answer_.Fork(index, plan.headers.size(), /*shown=*/!syntax_.is_calls());
  // All of them are there before the first begins to run.
  for (size_t i = 0; i < plan.headers.size(); ++i) {
    AddChild(index, i, plan);
    if (done_) return true;
  }
  const std::vector<size_t> children = parent.forked;
  const ContextId from = syntax_.is_calls() ? ContextId{} : parent.context;
  for (const size_t child : children) Submit(child, from, orders);
  return true;
}

void ParallelTree::AddChild(size_t index, size_t number, const ForkPlan& plan) {
  const size_t child = branches_.size();
  Branch& branch = branches_.emplace_back();
  Branch& parent = At(index);
  branch.parent = index;
  branch.path = base::StrCat(parent.path, ".", parent.num_children);
  branch.depth = parent.depth + 1;
  branch.number = number;
  if (syntax_.is_calls()) {
    branch.before = parent.calls[number].prompt;
  } else {
    branch.tokens = parent.tokens;
  }
  branch.begun_at = branch.length = parent.length;
  branch.seed = SeedOf(parent.seed, parent.num_children++);
  const auto at = static_cast<int32_t>(parent.tokens.size());
  if (syntax_.is_concurrent()) branch.parts = scheduler::PartsApart(parent.parts, at);
  if (!syntax_.is_concurrent() && !syntax_.is_calls()) branch.parts = parent.parts;
  if (syntax_.at_start()) branch.parts.back().segment = static_cast<int32_t>(number) + 1;
  parent.forked.push_back(child);
  StartText(&branch);
  answer_.Add(index, branch.path);
  if (!Force(child, plan.headers[number])) return;
  const size_t header = plan.headers[number].size();
  branch.limit =
      PlacesOf(branch.parts, branch.tokens.size()) - static_cast<int32_t>(header) + plan.share;
}

void ParallelTree::EndBranch(size_t index, bool is_marked, bool length, ParallelOrders* orders) {
  if (index == 0) return Finish(length);
  if (!is_marked && !Force(index, syntax_.CutEnd(At(index).number))) return;
  if (!Force(index, syntax_.after())) return;
  Branch& branch = At(index);
  branch.state = State::kEnded;
  branch.stream.reset();
  answer_.End(index);
  if (--At(branch.parent).num_open == 0) Join(branch.parent, orders);
}

// The branch goes on behind its branches.
void ParallelTree::Join(size_t index, ParallelOrders* orders) {
  if (syntax_.is_calls()) return JoinCalls(index, orders);
  Branch& branch = At(index);
  const size_t at = branch.tokens.size();
  branch.stale.push_back(branch.context);
  ContextId from{};
  std::vector<ContextId> contexts;
  std::vector<const scheduler::ContextParts*> parts;
  std::vector<int32_t> lengths;
  for (const size_t child : branch.forked) {
    const Branch& one = At(child);
    Append(std::span(one.tokens).subspan(at), &branch.tokens);
    branch.length = std::max(branch.length, one.length);
    contexts.push_back(one.context);
    parts.push_back(&one.parts);
    lengths.push_back(static_cast<int32_t>(one.tokens.size()));
    branch.stale.push_back(one.context);
  }
  if (syntax_.is_concurrent()) {
    branch.parts = scheduler::JoinParts(parts, lengths, static_cast<int32_t>(at));
    from = Name();
    branch.stale.push_back(from);
    orders->joins.push_back({std::move(contexts), std::move(lengths), static_cast<int32_t>(at),
                             branch.parts, branch.tokens, from});
  } else {
    from = contexts.front();
  }
  for (const size_t child : branch.forked) std::vector<TokenId>().swap(At(child).tokens);
  branch.state = State::kRuns;
  StartText(&branch);
  if (!Force(index, syntax_.tail())) return;
  if (branch.is_cut) return EndBranch(index, /*is_marked=*/false, /*length=*/true, orders);
  Submit(index, from, orders);
}

void ParallelTree::Cut(size_t index, ParallelOrders* orders) {
  Branch& branch = At(index);
  if (done_ || branch.state == State::kEnded) return;
  if (branch.state == State::kForked) {
    branch.is_cut = true;
    const std::vector<size_t> children = branch.forked;
    for (const size_t child : children) Cut(child, orders);
    return;
  }
  Stop(&branch, /*has_ended=*/false, orders);
  EndBranch(index, /*is_marked=*/false, /*length=*/true, orders);
}

void ParallelTree::CutSlow(double now, ParallelOrders* orders) {
  if (limits_.cut_after_seconds <= 0) return;
  const size_t count = branches_.size();
  for (size_t i = 0; i < count && !done_; ++i) {
    if (At(i).state != State::kForked || now - At(i).forked_at < limits_.cut_after_seconds)
      continue;
    const std::vector<size_t> children = At(i).forked;
    for (const size_t child : children) Cut(child, orders);
  }
}

}  // namespace heddle::server
