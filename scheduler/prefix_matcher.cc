#include "scheduler/prefix_matcher.h"

#include <algorithm>
#include <limits>

namespace heddle::scheduler {

namespace {

// The running branch that computes the prompt, or null; a paused one computes nothing.
const Sequence* RunningCarrier(const RequestState& request) {
  if (request.forked || request.paused) return nullptr;
  for (const Sequence& branch : request.branches) {
    if (branch.phase == Phase::kRunning) return &branch;
  }
  return nullptr;
}

// Whether the embedding needs the hidden states of all positions of the prompt.
bool NeedsWholePrompt(const GenerationRequest& request) {
  return request.pooling == engine::Pooling::kMean || request.pooling == engine::Pooling::kFirst;
}

// Trailing pages, by group, that a sequence needs to continue from the end of a prefix.
std::vector<int32_t> TailPages(const SchedulerOptions& options) {
  std::vector<int32_t> pages;
  for (size_t group = 1; group < options.windows.size(); ++group) {
    const int32_t window = options.windows[group];
    const int32_t grain = options.page_rule().GrainOf(static_cast<int64_t>(group),
                                                      static_cast<int64_t>(options.windows.size()));
    pages.push_back(window == 0 ? std::numeric_limits<int32_t>::max()
                                : (window + grain) / options.page_tokens + 2);
  }
  return pages;
}

std::unique_ptr<PageAllocator> HostPool(const SchedulerOptions& options) {
  if (options.num_host_pages == 0 || !options.prefix_cache) return nullptr;
  return std::make_unique<PageAllocator>(options.num_host_pages, options.page_tokens);
}

}  // namespace

PrefixMatcher::PrefixMatcher(const SchedulerLimits& limits, PageAllocator* pool,
                             const StepBudget& budget, const KeptContexts& contexts)
    : limits_(limits),
      page_tokens_(limits.options.page_tokens),
      pool_(*pool),
      budget_(budget),
      contexts_(contexts),
      host_pool_(HostPool(limits.options)),
      cache_(pool, host_pool_.get(), limits.num_groups) {
  cache_.set_worth([this](int32_t depth) { return budget_.PageUs(depth); });
  cache_.set_keeps([this](int32_t depth) { return budget_.SwapPays(depth); });
  cache_.set_tails(TailPages(limits.options));
  page_scratch_.reserve(static_cast<size_t>(page_tokens_));
}

void PrefixMatcher::EndStep(engine::StepPlan* plan) {
  plan->swaps_out = cache_.swaps_out();
  plan->swaps_in = cache_.swaps_in();
  cache_.EndStep();
}

int32_t PrefixMatcher::host_pages_used() const {
  return host_pool_ ? host_pool_->num_used() + host_pool_->num_evictable() : 0;
}

absl::Status PrefixMatcher::CheckIntegrity() const {
  if (host_pool_) {
    if (absl::Status host = host_pool_->CheckIntegrity(); !host.ok()) return host;
  }
  return cache_.CheckIntegrity();
}

void PrefixMatcher::HashPrompt(RequestState* request) const {
  if (!limits_.options.prefix_cache) return;
  const std::vector<TokenId>& prompt = request->request.prompt;
  const auto page_tokens = static_cast<size_t>(page_tokens_);
  uint64_t hash = PrefixCache::EmptyHash(request->request.cache_space);
  const size_t length = std::min(prompt.size(), static_cast<size_t>(request->layout.first_end()));
  request->page_hashes.reserve(length / page_tokens);
  for (size_t begin = 0; begin + page_tokens <= length; begin += page_tokens) {
    hash = PrefixCache::Extend(hash, {prompt.data() + begin, page_tokens});
    request->page_hashes.push_back(hash);
  }
}

// The tokens of the page-th page of the sequence, as far as it has them.
std::span<const TokenId> PrefixMatcher::PageTokens(const Sequence& sequence, int32_t page) {
  int32_t begin = page * page_tokens_;
  int32_t end = std::min(begin + page_tokens_, sequence.num_tokens());
  page_scratch_.clear();
  for (int32_t p = begin; p < end; ++p) page_scratch_.push_back(sequence.TokenAt(p));
  return page_scratch_;
}

// The hash of what `chain` covers followed by the page-th page.
uint64_t PrefixMatcher::HashAfter(const Sequence& sequence, int32_t page, uint64_t chain,
                                  std::span<const TokenId> tokens) {
  const std::vector<uint64_t>& known = sequence.request->page_hashes;
  if (page < static_cast<int32_t>(known.size())) return known[page];
  return PrefixCache::Extend(chain, tokens);
}

// The most positions that a sequence takes over: something is left to compute, of the prompt if
// workers wait for it, and so is what is yet to be scored or pooled.
int32_t PrefixMatcher::MostTaken(const Sequence& sequence) {
  const RequestState& state = *sequence.request;
  if (state.has_workers() && !state.forked) return state.layout.first_end() - 1;
  int32_t most = sequence.num_tokens() - 1;
  if (state.request.prompt_logprobs >= 0) most = std::min(most, state.num_scored);
  if (NeedsWholePrompt(state.request)) most = std::min(most, state.num_pooled);
  return most;
}

void PrefixMatcher::Take(Sequence* sequence, bool may_fetch) {
  const GenerationRequest& request = sequence->request->request;
  sequence->num_hashed_pages = 0;
  sequence->chain = PrefixCache::EmptyHash(request.cache_space);
  const int32_t wanted = MostTaken(*sequence);
  path_.clear();
  if (limits_.options.prefix_cache) {
    const int32_t plain = std::min(wanted, sequence->request->layout.first_end());
    FindPath(*sequence, plain, may_fetch);
    const int32_t depth = CoveredDepth(may_fetch);
    const bool is_whole = depth == static_cast<int32_t>(path_.size());
    const bool has_parts = !limits_.options.state_is_snapshot;
    if (TakePath(sequence, depth) && is_whole && has_parts) TakePartial(sequence, plain);
  }
  if (request.from != ContextId{}) TakeKept(sequence, wanted);
  GoOn(sequence);
}

void PrefixMatcher::GoOn(Sequence* sequence) const {
  const RequestState& request = *sequence->request;
  if (request.layout.is_plain()) return;
  const PageTable& table = sequence->tables[0];
  do {
    const int32_t place = sequence->num_computed();
    sequence->tables.SkipPlaces(request.layout.HolesAt(place));
    if (table.Room(pool_) > 0 || table.empty()) return;
  } while (request.request.from != ContextId{} &&
           contexts_.TakeMore(request.request.from, MostTaken(*sequence), sequence));
}

// Takes the pages of the request's context if they are more than those that the cache had. Pages
// that the cache has, too, count as hashed; those behind them get into it as the sequence fills
// more.
void PrefixMatcher::TakeKept(Sequence* sequence, int32_t wanted) {
  const ContextId from = sequence->request->request.from;
  const int32_t held = contexts_.NumHeld(from, *sequence, wanted);
  if (held <= sequence->num_computed()) return;
  GiveUp(sequence);
  contexts_.Take(from, held, sequence);
  const PageTable& table = sequence->tables[0];
  if (table.num_dropped() > 0) {
    sequence->num_hashed_pages = -1;
    return;
  }
  const auto full = std::min(held / page_tokens_, static_cast<int32_t>(path_.size()));
  int32_t& hashed = sequence->num_hashed_pages;
  while (hashed < full && table.PageAt(hashed, pool_) == path_[hashed]) ++hashed;
  if (hashed > 0) sequence->chain = cache_.HashOf(path_[hashed - 1]);
}

void PrefixMatcher::GiveUp(Sequence* sequence) {
  sequence->tables.Drop(&pool_);
  sequence->num_hashed_pages = 0;
  sequence->chain = PrefixCache::EmptyHash(sequence->request->request.cache_space);
}

// Finds the nodes that hold the sequence's first full pages, as deep as they can be taken over.
void PrefixMatcher::FindPath(const Sequence& sequence, int32_t wanted, bool may_fetch) {
  uint64_t chain = sequence.chain;
  PageId parent = PrefixCache::kNone;
  for (int32_t page = 0; (page + 1) * page_tokens_ <= wanted; ++page) {
    std::span<const TokenId> tokens = PageTokens(sequence, page);
    const uint64_t hash = HashAfter(sequence, page, chain, tokens);
    const PageId found = cache_.Find(hash, chain, parent, tokens);
    if (!IsWithinReach(found, page, may_fetch)) return;
    path_.push_back(found);
    chain = hash;
    parent = found;
  }
}

// Whether `node`, the depth-th page of its prefix, is in the pool or worth fetching.
bool PrefixMatcher::IsWithinReach(PageId node, int32_t depth, bool may_fetch) const {
  if (node == PrefixCache::kNone) return false;
  return !cache_.IsOnHost(node) || (may_fetch && budget_.SwapPays(depth));
}

// The first position that a group's spans must have for the row at `position`: the beginning of its
// window, rounded down to whole grains.
int32_t PrefixMatcher::FirstSeen(int32_t group, int32_t position) const {
  const int32_t window = limits_.options.windows[group];
  if (window == 0 || group == 0) return 0;  // the first group needs the whole path
  const int32_t first = std::max(0, position + 1 - window);
  return first - first % limits_.GrainOf(group);
}

// Pages of path_ that can be taken over: as many as give the next row its full window in every
// group.
int32_t PrefixMatcher::CoveredDepth(bool may_fetch) const {
  auto depth = static_cast<int32_t>(path_.size());
  for (int32_t group = 1; group < limits_.num_groups;) {
    const int32_t first = FirstSeen(group, depth * page_tokens_) / page_tokens_;
    int32_t page = depth;
    while (page > first &&
           IsWithinReach(cache_.PageOf(path_[page - 1], group), page - 1, may_fetch)) {
      --page;
    }
    if (page <= first) {
      ++group;
      continue;
    }
    depth = page - 1;  // the next row would see the missing page
    group = 1;
  }
  return depth;
}

// Makes the first `depth` pages of path_ those of `sequence`, in each group from the start of its
// window. Returns false, with nothing taken, if there is no free page for one that has to be
// fetched.
bool PrefixMatcher::TakePath(Sequence* sequence, int32_t depth) {
  if (depth == 0) return true;
  if (host_pool_) PinPath(depth);
  bool has_all = true;
  for (int32_t group = 0; group < limits_.num_groups && has_all; ++group) {
    PageTable& table = sequence->tables[group];
    table.StartAt(FirstSeen(group, depth * page_tokens_));
    has_all = TakePages(&table, group, depth);
  }
  pool_.Release(pinned_);
  pinned_.clear();
  if (!has_all) {
    sequence->tables.Drop(&pool_);
    return false;
  }
  sequence->num_hashed_pages = depth;
  sequence->chain = cache_.HashOf(path_[depth - 1]);
  return true;
}

bool PrefixMatcher::TakePages(PageTable* table, int32_t group, int32_t depth) {
  for (int32_t page = table->num_tokens() / page_tokens_; page < depth; ++page) {
    const PageId node = cache_.PageOf(path_[page], group);
    if (!cache_.IsOnHost(node)) {
      table->AppendShared(node, page_tokens_, &pool_);
      continue;
    }
    if (pool_.num_free() == 0) return false;
    const PageId fetched = pool_.AllocateOne();
    cache_.Fetch(node, fetched);
    if (group == 0) path_[page] = fetched;
    table->AppendShared(fetched, page_tokens_, &pool_);
    pool_.Release(fetched);  // the table has its own reference
  }
  return true;
}

// Holds what TakePath is about to take: fetching one page may evict another.
void PrefixMatcher::PinPath(int32_t depth) {
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    const int32_t first = FirstSeen(group, depth * page_tokens_) / page_tokens_;
    for (int32_t page = first; page < depth; ++page) {
      const PageId node = cache_.PageOf(path_[page], group);
      if (cache_.IsOnHost(node)) {
        cache_.Hold(node);
      } else {
        pool_.Share(node);
        pinned_.push_back(node);
      }
    }
  }
}

// Takes over the common part of another sequence's page behind those that were taken.
void PrefixMatcher::TakePartial(Sequence* sequence, int32_t wanted) {
  const int32_t room = wanted - sequence->num_computed();
  if (room <= 0) return;
  std::span<const TokenId> tokens = PageTokens(*sequence, sequence->num_hashed_pages);
  tokens = tokens.first(std::min<size_t>(tokens.size(), static_cast<size_t>(room)));
  int32_t common = 0;
  const PageId parent = path_.empty() ? PrefixCache::kNone : path_.back();
  const PageId found = cache_.FindPartial(sequence->chain, parent, tokens, &common);
  if (common == 0) return;
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    sequence->tables[group].AppendShared(cache_.PageOf(found, group), common, &pool_);
  }
}

void PrefixMatcher::Leave(Sequence* sequence) {
  if (!limits_.options.prefix_cache) return;
  // Tokens of later parts may have seen less than all that is before them: the hash of their pages
  // would be that of others.
  const int32_t known = std::min(
      {sequence->num_computed(), sequence->num_tokens(), sequence->request->layout.first_end()});
  while (sequence->num_hashed_pages >= 0 &&
         (sequence->num_hashed_pages + 1) * page_tokens_ <= known) {
    const int32_t page = sequence->num_hashed_pages;
    // If this fails, the sequence's later pages stay private.
    sequence->num_hashed_pages = LeavePage(sequence, page) ? page + 1 : -1;
  }
}

// Returns false if the previous page is gone from the cache (it was evicted, or depended on one
// that the window had passed), or if two pages have the same hash.
bool PrefixMatcher::LeavePage(Sequence* sequence, int32_t page) {
  PageTable& table = sequence->tables[0];
  const PageId own = table.PageAt(page, pool_);
  const PageId parent = page > 0 ? table.PageAt(page - 1, pool_) : PrefixCache::kNone;
  if (page > 0 && !cache_.Owns(parent)) return false;
  const std::span<const TokenId> tokens = PageTokens(*sequence, page);
  const uint64_t hash = HashAfter(*sequence, page, sequence->chain, tokens);
  if (!cache_.Insert(own, hash, sequence->chain, parent, tokens)) {
    const PageId found = cache_.Find(hash, sequence->chain, parent, tokens);
    if (found == PrefixCache::kNone) return false;
    if (cache_.IsOnHost(found)) {
      cache_.Adopt(found, own);
    } else {
      table.ReplacePage(page, found, &pool_);
    }
  }
  LeaveCompanions(sequence, page, table.PageAt(page, pool_));
  sequence->chain = hash;
  return true;
}

// Does the same for the page-th pages of further groups, as companions of the first group's `node`.
void PrefixMatcher::LeaveCompanions(Sequence* sequence, int32_t page, PageId node) {
  for (int32_t group = 1; group < limits_.num_groups; ++group) {
    PageTable& table = sequence->tables[group];
    if (page * page_tokens_ < table.num_dropped()) continue;
    const PageId own = table.PageAt(page, pool_);
    const PageId found = cache_.PageOf(node, group);
    if (found == PrefixCache::kNone) {
      cache_.Attach(node, group, own);
    } else if (cache_.IsOnHost(found)) {
      cache_.Adopt(found, own);
    } else {
      table.ReplacePage(page, found, &pool_);
    }
  }
}

bool PrefixMatcher::FindsLeader(Sequence* sequence, std::span<Sequence* const> prompts) const {
  RequestState* request = sequence->request;
  size_t next = static_cast<size_t>(std::max(sequence->num_hashed_pages, 0));
  const std::vector<uint64_t>& mine = request->page_hashes;
  if (!limits_.options.prefix_cache || request->request.prompt_logprobs >= 0 ||
      NeedsWholePrompt(request->request)) {
    return false;
  }
  if (next >= mine.size()) return false;
  for (const Sequence* other : prompts) {
    const std::vector<uint64_t>& theirs = other->request->page_hashes;
    bool computes_it = !other->request->forked && next < theirs.size() &&
                       theirs[next] == mine[next] &&
                       other->num_hashed_pages <= static_cast<int32_t>(next);
    if (!computes_it || !MoreUrgent()(other, sequence)) continue;
    size_t limit = std::min(mine.size(), theirs.size());
    size_t common = next + 1;
    while (common < limit && mine[common] == theirs[common]) ++common;
    request->leader = other->request->request.id;
    request->leader_pages = static_cast<int32_t>(common);
    return true;
  }
  return false;
}

bool PrefixMatcher::WaitsForLeader(RequestState* request, const RequestMap& requests) const {
  if (request->leader_pages == 0) return false;
  auto leader = requests.find(request->leader);
  const Sequence* carrier = leader == requests.end() ? nullptr : RunningCarrier(*leader->second);
  if (carrier && carrier->num_hashed_pages >= 0 &&
      carrier->num_hashed_pages < request->leader_pages) {
    return true;
  }
  request->leader_pages = 0;
  return false;
}

}  // namespace heddle::scheduler
