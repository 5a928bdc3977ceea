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

uint64_t Scheduler::HashAfter(const Sequence& sequence, int32_t page,
                              std::span<const TokenId> tokens) const {
  const std::vector<uint64_t>& known = sequence.request->page_hashes;
  if (page < static_cast<int32_t>(known.size())) return known[page];
  return PrefixCache::Extend(sequence.chain, tokens);
}

// Fills the empty table of `sequence` with what the cache has of its tokens. The last token is
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
  PageId parent = PrefixCache::kNone;
  for (int32_t page = 0; sequence->num_computed() < wanted; ++page) {
    int32_t room = wanted - sequence->num_computed();
    std::span<const TokenId> tokens = PageTokens(*sequence, page);
    if (room >= options_.page_tokens) {
      uint64_t hash = HashAfter(*sequence, page, tokens);
      PageId found = cache_.Find(hash, sequence->chain, parent, tokens);
      bool was_on_host = found != PrefixCache::kNone && cache_.IsOnHost(found);
      if (was_on_host) found = FetchPage(found, page, may_fetch);
      if (found != PrefixCache::kNone) {
        sequence->table.AppendShared(found, options_.page_tokens, &pool_);
        if (was_on_host) pool_.Release(found);  // the table has its own reference
        sequence->chain = hash;
        sequence->num_hashed_pages = page + 1;
        parent = found;
        continue;
      }
    }
    tokens = tokens.first(std::min<size_t>(tokens.size(), static_cast<size_t>(room)));
    int32_t common = 0;
    PageId found = cache_.FindPartial(sequence->chain, parent, tokens, &common);
    if (common > 0) sequence->table.AppendShared(found, common, &pool_);
    return;
  }
}

// Brings a page back from the second tier, with one reference for the caller; kNone where it stays
// there.
PageId Scheduler::FetchPage(PageId node, int32_t depth, bool may_fetch) {
  if (!may_fetch || pool_.num_free() == 0 || !SwapPays(depth)) return PrefixCache::kNone;
  cache_.Hold(node);
  PageId page = pool_.AllocateOne();
  cache_.Fetch(node, page);
  return page;
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

// Makes the pages that `sequence` has filled findable. Where another sequence has filled the same
// page first, that one takes the place of ours, which goes back to the pool.
void Scheduler::LeaveCached(Sequence* sequence) {
  if (!options_.prefix_cache || sequence->num_hashed_pages < 0) return;
  while ((sequence->num_hashed_pages + 1) * options_.page_tokens <= sequence->num_computed()) {
    int32_t page = sequence->num_hashed_pages;
    PageId own = sequence->table.PageAt(page, pool_);
    PageId parent = page > 0 ? sequence->table.PageAt(page - 1, pool_) : PrefixCache::kNone;
    if (page > 0 && !pool_.is_cached(parent)) {
      sequence->num_hashed_pages = -1;  // what its window had passed was evicted, and it with that
      return;
    }
    std::span<const TokenId> tokens = PageTokens(*sequence, page);
    uint64_t hash = HashAfter(*sequence, page, tokens);
    if (cache_.Insert(own, hash, sequence->chain, parent, tokens)) {
      pool_.SetCached(own);
    } else if (PageId found = cache_.Find(hash, sequence->chain, parent, tokens);
               found != PrefixCache::kNone) {
      if (cache_.IsOnHost(found)) {
        cache_.Adopt(found, own);
      } else {
        sequence->table.ReplacePage(page, found, &pool_);
      }
    } else {
      sequence->num_hashed_pages = -1;  // two pages of one hash: this sequence stays private
      return;
    }
    sequence->chain = hash;
    sequence->num_hashed_pages = page + 1;
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
