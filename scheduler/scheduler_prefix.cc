// The scheduler's use of the prefix cache: what a sequence takes over when it is admitted, what it
// leaves for others as its pages fill, and when it is better to wait for a page than to compute it.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace heddle::scheduler {

namespace {

// The running branch that computes the prompt, or null.
const Sequence* RunningCarrier(const RequestState& request) {
  if (request.forked) return nullptr;
  for (const Sequence& branch : request.branches) {
    if (branch.phase == Phase::kRunning) return &branch;
  }
  return nullptr;
}

// Whether hidden states from the prompt's beginning on make its embedding.
bool NeedsWholePrompt(const GenerationRequest& request) {
  return request.pooling == engine::Pooling::kMean || request.pooling == engine::Pooling::kFirst;
}

}  // namespace

void Scheduler::HashPrompt(RequestState* request) const {
  const std::vector<TokenId>& prompt = request->request.prompt;
  size_t page_tokens = static_cast<size_t>(options_.page_tokens);
  uint64_t hash = PrefixCache::EmptyHash(request->request.cache_space);
  request->page_hashes.reserve(prompt.size() / page_tokens);
  for (size_t begin = 0; begin + page_tokens <= prompt.size(); begin += page_tokens) {
    hash = PrefixCache::Extend(hash, {prompt.data() + begin, page_tokens});
    request->page_hashes.push_back(hash);
  }
}

// Tokens of the page-th page of the sequence, as many as it has.
std::span<const TokenId> Scheduler::PageTokens(const Sequence& sequence, int32_t page) {
  int32_t begin = page * options_.page_tokens;
  int32_t end = std::min(begin + options_.page_tokens, sequence.num_tokens());
  page_scratch_.clear();
  for (int32_t p = begin; p < end; ++p) page_scratch_.push_back(sequence.TokenAt(p));
  return page_scratch_;
}

// Hash of what `chain` covers and the page-th page.
uint64_t Scheduler::HashAfter(const Sequence& sequence, int32_t page, uint64_t chain,
                              std::span<const TokenId> tokens) const {
  const std::vector<uint64_t>& known = sequence.request->page_hashes;
  if (page < static_cast<int32_t>(known.size())) return known[page];
  return PrefixCache::Extend(chain, tokens);
}

// Fills the empty tables of `sequence` with what the cache has of its tokens. The last token is
// always computed: its logits are wanted. So are those of prompt positions not yet scored.
void Scheduler::TakeCached(Sequence* sequence) {
  const GenerationRequest& request = sequence->request->request;
  sequence->num_hashed_pages = 0;
  sequence->chain = PrefixCache::EmptyHash(request.cache_space);
  if (!options_.prefix_cache) return;
  int32_t wanted = sequence->num_tokens() - 1;
  if (request.prompt_logprobs >= 0) wanted = std::min(wanted, sequence->request->num_scored);
  if (NeedsWholePrompt(request)) wanted = std::min(wanted, sequence->request->num_pooled);
  // Pages are only fetched for a sequence that will run now, whatever it finds.
  const bool may_fetch = running_.empty() || SparePages() >= PagesToRun(*sequence);
  FindPath(*sequence, wanted, may_fetch);
  const int32_t depth = CoveredDepth(may_fetch);
  const bool is_whole = depth == static_cast<int32_t>(path_.size());
  if (TakePath(sequence, depth) && is_whole) TakePartial(sequence, wanted);
}

// The nodes that hold the sequence's first full pages, as deep as they can be taken over.
void Scheduler::FindPath(const Sequence& sequence, int32_t wanted, bool may_fetch) {
  path_.clear();
  uint64_t chain = sequence.chain;
  PageId parent = PrefixCache::kNone;
  for (int32_t page = 0; (page + 1) * options_.page_tokens <= wanted; ++page) {
    std::span<const TokenId> tokens = PageTokens(sequence, page);
    const uint64_t hash = HashAfter(sequence, page, chain, tokens);
    const PageId found = cache_.Find(hash, chain, parent, tokens);
    if (!IsWithinReach(found, page, may_fetch)) return;
    path_.push_back(found);
    chain = hash;
    parent = found;
  }
}

// Whether a page of the cache, the depth-th of its prefix, is in the pool or worth fetching.
bool Scheduler::IsWithinReach(PageId node, int32_t depth, bool may_fetch) const {
  if (node == PrefixCache::kNone) return false;
  return !cache_.IsOnHost(node) || (may_fetch && SwapPays(depth));
}

// The first position that a group's spans must have for the row at `position`: where its window
// begins, in whole grains.
int32_t Scheduler::FirstSeen(int32_t group, int32_t position) const {
  const int32_t window = options_.windows[group];
  if (window == 0 || group == 0) return 0;  // the first group's pages are taken whole: the path
  const int32_t first = std::max(0, position + 1 - window);
  return first - first % options_.window_grain;
}

// Pages of path_ that can be taken over: as many as leave every group what the next row sees in it.
int32_t Scheduler::CoveredDepth(bool may_fetch) const {
  auto depth = static_cast<int32_t>(path_.size());
  for (int32_t group = 1; group < num_groups_;) {
    const int32_t first = FirstSeen(group, depth * options_.page_tokens) / options_.page_tokens;
    int32_t page = depth;
    while (page > first &&
           IsWithinReach(cache_.PageOf(path_[page - 1], group), page - 1, may_fetch)) {
      --page;
    }
    if (page <= first) {
      ++group;
      continue;
    }
    depth = page - 1;  // no row that sees the missing page can be the next
    group = 1;
  }
  return depth;
}

// The first `depth` pages of path_ become those of `sequence`, of each group from where its window
// begins. False, and nothing is taken, if no page is free for one that has to be fetched.
bool Scheduler::TakePath(Sequence* sequence, int32_t depth) {
  if (depth == 0) return true;
  if (host_pool_) PinPath(depth);
  bool has_all = true;
  for (int32_t group = 0; group < num_groups_ && has_all; ++group) {
    PageTable& table = sequence->tables[group];
    table.StartAt(FirstSeen(group, depth * options_.page_tokens));
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

bool Scheduler::TakePages(PageTable* table, int32_t group, int32_t depth) {
  for (int32_t page = table->num_tokens() / options_.page_tokens; page < depth; ++page) {
    const PageId node = cache_.PageOf(path_[page], group);
    if (!cache_.IsOnHost(node)) {
      table->AppendShared(node, options_.page_tokens, &pool_);
      continue;
    }
    if (pool_.num_free() == 0) return false;
    const PageId fetched = pool_.AllocateOne();
    cache_.Fetch(node, fetched);
    if (group == 0) path_[page] = fetched;
    table->AppendShared(fetched, options_.page_tokens, &pool_);
    pool_.Release(fetched);  // the table has its own reference
  }
  return true;
}

// Keeps what TakePath is about to take where it is: fetching one page may evict another.
void Scheduler::PinPath(int32_t depth) {
  for (int32_t group = 0; group < num_groups_; ++group) {
    const int32_t first = FirstSeen(group, depth * options_.page_tokens) / options_.page_tokens;
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

// As much as another's page has in common with the page behind those that were taken.
void Scheduler::TakePartial(Sequence* sequence, int32_t wanted) {
  const int32_t room = wanted - sequence->num_computed();
  if (room <= 0) return;
  std::span<const TokenId> tokens = PageTokens(*sequence, sequence->num_hashed_pages);
  tokens = tokens.first(std::min<size_t>(tokens.size(), static_cast<size_t>(room)));
  int32_t common = 0;
  const PageId parent = path_.empty() ? PrefixCache::kNone : path_.back();
  const PageId found = cache_.FindPartial(sequence->chain, parent, tokens, &common);
  if (common == 0) return;
  for (int32_t group = 0; group < num_groups_; ++group) {
    sequence->tables[group].AppendShared(cache_.PageOf(found, group), common, &pool_);
  }
}

// Whether moving the depth-th page of a prefix takes less time than computing its rows would.
bool Scheduler::SwapPays(int32_t depth) const {
  if (!cost_model_.is_ready() || swap_us_per_page_ == 0) return true;
  return PageUs(depth) > swap_us_per_page_;
}

// The time to compute the depth-th page of a prefix; 1 for all while it is not known.
double Scheduler::PageUs(int32_t depth) const {
  if (!cost_model_.is_ready()) return 1.0;
  const int64_t context = int64_t{depth} * options_.page_tokens;
  return std::max(1.0, options_.page_tokens * cost_model_.RowUs(context));
}

// Makes the pages that `sequence` has filled with known tokens findable. Where another sequence has
// filled the same page first, that one takes the place of ours, which goes back to the pool.
void Scheduler::LeaveCached(Sequence* sequence) {
  if (!options_.prefix_cache || sequence->num_hashed_pages < 0) return;
  PageTable& table = sequence->tables[0];
  const int32_t known = std::min(sequence->num_computed(), sequence->num_tokens());
  while ((sequence->num_hashed_pages + 1) * options_.page_tokens <= known) {
    int32_t page = sequence->num_hashed_pages;
    PageId own = table.PageAt(page, pool_);
    PageId parent = page > 0 ? table.PageAt(page - 1, pool_) : PrefixCache::kNone;
    if (page > 0 && !pool_.is_cached(parent)) {
      sequence->num_hashed_pages = -1;  // what its window had passed was evicted, and it with that
      return;
    }
    std::span<const TokenId> tokens = PageTokens(*sequence, page);
    uint64_t hash = HashAfter(*sequence, page, sequence->chain, tokens);
    if (cache_.Insert(own, hash, sequence->chain, parent, tokens)) {
      pool_.SetCached(own);
    } else if (PageId found = cache_.Find(hash, sequence->chain, parent, tokens);
               found != PrefixCache::kNone) {
      if (cache_.IsOnHost(found)) {
        cache_.Adopt(found, own);
      } else {
        table.ReplacePage(page, found, &pool_);
      }
    } else {
      sequence->num_hashed_pages = -1;  // two pages of one hash: this sequence stays private
      return;
    }
    LeaveCompanions(sequence, page, table.PageAt(page, pool_));
    sequence->chain = hash;
    sequence->num_hashed_pages = page + 1;
  }
}

// The same for the page-th pages of further groups, which hang on the first group's `node`.
void Scheduler::LeaveCompanions(Sequence* sequence, int32_t page, PageId node) {
  for (int32_t group = 1; group < num_groups_; ++group) {
    PageTable& table = sequence->tables[group];
    if (page * options_.page_tokens < table.num_dropped()) continue;
    const PageId own = table.PageAt(page, pool_);
    const PageId found = cache_.PageOf(node, group);
    if (found == PrefixCache::kNone) {
      cache_.Attach(node, group, own);
      pool_.SetCached(own);
    } else if (cache_.IsOnHost(found)) {
      cache_.Adopt(found, own);
    } else {
      table.ReplacePage(page, found, &pool_);
    }
  }
}

// Whether a more urgent sequence is computing the next page that `sequence` (which has taken what
// is there) would compute: then it waits, and takes over all they have in common.
bool Scheduler::FindsLeader(Sequence* sequence) const {
  RequestState* request = sequence->request;
  size_t next = static_cast<size_t>(std::max(sequence->num_hashed_pages, 0));
  const std::vector<uint64_t>& mine = request->page_hashes;
  if (!options_.prefix_cache || request->request.prompt_logprobs >= 0 ||
      NeedsWholePrompt(request->request)) {
    return false;
  }
  if (next >= mine.size()) return false;
  for (const Sequence* other : prompts_) {
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

// Whether the sequence that FindsLeader found is still at it.
bool Scheduler::WaitsForLeader(RequestState* request) const {
  if (request->leader_pages == 0) return false;
  auto leader = requests_.find(request->leader);
  const Sequence* carrier = leader == requests_.end() ? nullptr : RunningCarrier(*leader->second);
  if (carrier && carrier->num_hashed_pages >= 0 &&
      carrier->num_hashed_pages < request->leader_pages) {
    return true;
  }
  request->leader_pages = 0;
  return false;
}

}  // namespace heddle::scheduler
