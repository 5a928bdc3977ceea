#include "scheduler/kept_contexts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace heddle::scheduler {

using engine::Index;

void KeptContexts::Keep(ContextId id, const Sequence& sequence, int32_t num_tokens) {
  const GenerationRequest& request = sequence.request->request;
  Context context{.cache_space = request.cache_space,
                  .adapter = request.adapter.id,
                  .adapter_scale = request.adapter.scale};
  num_tokens = std::clamp(num_tokens, 0, sequence.num_tokens());
  context.layout = sequence.request->layout.First(num_tokens);
  context.tokens.reserve(static_cast<size_t>(num_tokens));
  for (int32_t p = 0; p < num_tokens; ++p) context.tokens.push_back(sequence.TokenAt(p));
  context.tables.resize(static_cast<size_t>(limits_.num_groups));
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    const PageTable& table = sequence.tables[group];
    KeptTable& kept = context.tables[group];
    kept.num_dropped = table.num_dropped();
    int32_t left = num_tokens - kept.num_dropped;
    for (const KvSpan& span : table.spans()) {
      if (left <= 0 || (left < span.num_tokens && !limits_.HasPartsOfPages(group))) break;
      kept.spans.push_back(
          {span.page, std::min(left, span.num_tokens), pool_.generation(span.page)});
      left -= span.num_tokens;
    }
  }
  Insert(id, std::move(context));
}

void KeptContexts::Fork(ContextId from, int32_t num_tokens, ContextId to) {
  const auto found = contexts_.find(from);
  if (found == contexts_.end()) return;
  Context context = found->second;
  Cut(context.layout.PlaceOf(std::max(0, num_tokens)), &context);
  Insert(to, std::move(context));
}

void KeptContexts::Cut(int32_t num_places, Context* context) const {
  const auto length = std::min(num_places, static_cast<int32_t>(context->tokens.size()));
  context->tokens.resize(static_cast<size_t>(length));
  context->layout = context->layout.First(length);
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    KeptTable& table = context->tables[group];
    int32_t left = length - table.num_dropped;
    const int32_t pages = (std::max(0, left) + pool_.page_tokens() - 1) / pool_.page_tokens();
    table.spans.resize(std::min(table.spans.size(), static_cast<size_t>(pages)));
    bool is_cut = false;  // the last page
    for (KeptSpan& span : table.spans) {
      is_cut = span.num_tokens > left;
      span.num_tokens = std::min(span.num_tokens, left);
      left -= pool_.page_tokens();
    }
    if (is_cut && !limits_.HasPartsOfPages(group)) table.spans.pop_back();
  }
}

void KeptContexts::Join(const ContextJoin& join) {
  const auto first = contexts_.find(join.children[0]);
  if (first == contexts_.end()) return;
  Context joined = first->second;
  Cut(joined.layout.PlaceOf(join.at), &joined);
  ForgetPassed(join.at, &joined);
  const ContextLayout layout(join.parts, pool_.page_tokens());
  std::vector<TokenId> tokens = join.tokens;
  layout.AddHoles(&tokens);
  if (tokens.size() < joined.tokens.size() ||
      !std::equal(joined.tokens.begin(), joined.tokens.end(), tokens.begin())) {
    return;
  }
  joined.tokens = std::move(tokens);
  int32_t length = join.at;
  for (size_t c = 0; c < join.children.size(); ++c) {
    const int32_t before = layout.PlaceOf(length);
    length += join.lengths[c] - join.at;
    const auto found = contexts_.find(join.children[c]);
    if (found == contexts_.end()) continue;
    JoinOne(found->second, join.at, before, layout.PlaceOf(length), &joined);
  }
  joined.tokens.resize(static_cast<size_t>(layout.PlaceOf(length)));
  joined.layout = layout.First(static_cast<int32_t>(joined.tokens.size()));
  Insert(join.to, std::move(joined));
}

// Forgets the pages of groups that have given back more than the window of a row behind the first
// `length` tokens has passed.
void KeptContexts::ForgetPassed(int32_t length, Context* context) const {
  const int32_t next = std::min(context->layout.PlaceOf(length), context->layout.first_end());
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    KeptTable& table = context->tables[group];
    if (table.num_dropped > FirstSeen(group, next)) table = {};
  }
}

// The first place that the row behind `place` sees, which may be in the first part alone.
int32_t KeptContexts::FirstSeen(int32_t group, int32_t place) const {
  const int32_t window = limits_.options.windows[group];
  return window == 0 ? 0 : std::max(0, place + 1 - window);
}

// Makes `table`, of the first `end` places, one of whole pages: holes behind what is there, and
// pages that are not there.
void KeptContexts::FillPages(int32_t end, KeptTable* table) const {
  const int32_t page_tokens = pool_.page_tokens();
  end -= table->num_dropped;
  const auto pages = static_cast<size_t>((end + page_tokens - 1) / page_tokens);
  if (table->spans.size() == pages && pages > 0) {
    KeptSpan& last = table->spans.back();
    if ((static_cast<int32_t>(pages) - 1) * page_tokens + last.num_tokens == end) {
      last.num_tokens = page_tokens;
    }
  }
  table->spans.resize(pages, KeptSpan{PageId{0}, 0, kLost});
}

// Adds the pages of what `child` has beyond the fork to those of the join, which it has from the
// first page behind place `before` to `end`. Adds none if they do not begin at the fork, or if it
// is no sibling of the others.
void KeptContexts::JoinOne(const Context& child, int32_t at, int32_t before, int32_t end,
                           Context* joined) const {
  const int32_t page_tokens = pool_.page_tokens();
  const int32_t begin = (before + page_tokens - 1) / page_tokens * page_tokens;
  const int32_t fork = child.layout.PlaceOf(at);
  const int32_t own = fork + child.layout.HolesAt(fork);
  const bool is_sibling = child.cache_space == joined->cache_space &&
                          child.adapter == joined->adapter &&
                          child.adapter_scale == joined->adapter_scale;
  if (!is_sibling || own >= std::ssize(child.tokens) || own % page_tokens != 0 ||
      !std::equal(child.tokens.begin(), child.tokens.begin() + fork, joined->tokens.begin()) ||
      child.layout.SameAs(joined->layout, fork) < fork) {
    return;
  }
  const auto most = std::min<int32_t>(end - begin, static_cast<int32_t>(child.tokens.size()) - own);
  const auto from = child.tokens.begin() + own;
  const auto same = static_cast<int32_t>(
      std::mismatch(from, from + most, joined->tokens.begin() + begin).first - from);
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    const std::vector<KeptSpan>& spans = child.tables[group].spans;
    std::vector<KeptSpan>& all = joined->tables[group].spans;
    FillPages(before, &joined->tables[group]);
    const int32_t kept_from = own - child.tables[group].num_dropped;
    if (kept_from < 0) continue;  // a window has passed the fork
    int32_t left = same;
    for (auto i = static_cast<size_t>(kept_from / page_tokens); i < spans.size() && left > 0; ++i) {
      all.push_back(spans[i]);
      all.back().num_tokens = std::min(left, all.back().num_tokens);
      left -= page_tokens;
    }
  }
}

// The new one comes before the old one goes, because they may have pages in common.
void KeptContexts::Insert(ContextId id, Context&& context) {
  Enter(context);
  Drop(id);
  contexts_.emplace(id, std::move(context));
}

void KeptContexts::Drop(ContextId id) {
  const auto found = contexts_.find(id);
  if (found == contexts_.end()) return;
  Leave(found->second);
  contexts_.erase(found);
}

// Whether the pool still has the content of the page.
bool KeptContexts::IsThere(const KeptSpan& span) const {
  return pool_.generation(span.page) == span.generation &&
         (pool_.references(span.page) > 0 || pool_.is_owned(span.page));
}

// A page that nobody holds any more can have no new owner: it is already given up.
void KeptContexts::EnterPage(const KeptSpan& span, int32_t depth) {
  PageUse& use = uses_[Index(span.page)];
  if (use.generation != span.generation) use = {.generation = span.generation};
  use.depth = depth;
  ++use.users;
  if (pool_.references(span.page) > 0 && !pool_.is_owned(span.page)) {
    pool_.SetOwner(span.page, this);
  }
}

void KeptContexts::Enter(const Context& context) {
  for (const KeptTable& table : context.tables) {
    int32_t depth = table.num_dropped / pool_.page_tokens();
    for (const KeptSpan& span : table.spans) {
      if (pool_.generation(span.page) == span.generation) EnterPage(span, depth);
      ++depth;
    }
  }
}

void KeptContexts::Leave(const Context& context) {
  for (const KeptTable& table : context.tables) {
    for (const KeptSpan& span : table.spans) {
      PageUse& use = uses_[Index(span.page)];
      if (use.generation != span.generation || use.users == 0) continue;
      if (--use.users == 0 && pool_.IsOwnedBy(span.page, this)) pool_.ClearOwner(span.page);
    }
  }
}

double KeptContexts::Credit(PageId page, double evicted_last) {
  return evicted_last + budget_.PageUs(uses_[Index(page)].depth);
}

// The positions of a group's table that can be taken over, at most `wanted`: as many as are there
// from the start of the window that the next row sees.
int32_t KeptContexts::NumThere(const Context& context, int32_t group, int32_t wanted) const {
  const KeptTable& table = context.tables[group];
  int32_t end = table.num_dropped;
  for (const KeptSpan& span : table.spans) {
    if (end >= wanted || !IsThere(span)) break;
    if (end + span.num_tokens > wanted && !limits_.HasPartsOfPages(group)) break;
    end += span.num_tokens;
    if (span.num_tokens < pool_.page_tokens()) break;
  }
  end = std::min(end, wanted);
  const int32_t first_seen = FirstSeen(group, std::min(end, context.layout.first_end()));
  return table.num_dropped <= first_seen ? end : 0;
}

// Leading tokens of the context, at most `wanted`, that the sequence has, too, and that were
// computed as it would compute them.
int32_t KeptContexts::NumSame(const Context& context, const Sequence& sequence,
                              int32_t wanted) const {
  const GenerationRequest& request = sequence.request->request;
  if (context.cache_space != request.cache_space || context.adapter != request.adapter.id ||
      context.adapter_scale != request.adapter.scale) {
    return 0;
  }
  const auto length = std::min(wanted, static_cast<int32_t>(context.tokens.size()));
  const int32_t most = context.layout.SameAs(sequence.request->layout, length);
  int32_t same = 0;
  while (same < most && context.tokens[same] == sequence.TokenAt(same)) ++same;
  return same;
}

// The groups' tables need not have lost the same pages, and where one has less of them, the others
// may lack the front of the window behind it: then nothing is taken.
int32_t KeptContexts::NumHeld(ContextId id, const Sequence& sequence, int32_t wanted) const {
  const auto found = contexts_.find(id);
  if (found == contexts_.end()) return 0;
  const Context& context = found->second;
  int32_t held = NumSame(context, sequence, wanted);
  for (bool is_same = false; !is_same && held > 0;) {
    is_same = true;
    for (int32_t group = 0; group < limits_.num_groups; ++group) {
      const int32_t there = NumThere(context, group, held);
      is_same = is_same && there == held;
      held = there;
    }
  }
  return held;
}

void KeptContexts::Take(ContextId id, int32_t num_tokens, Sequence* sequence) const {
  const Context& context = contexts_.at(id);
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    const KeptTable& kept = context.tables[group];
    PageTable& table = sequence->tables[group];
    table.StartAt(kept.num_dropped);
    for (const KeptSpan& span : kept.spans) {
      const int32_t left = num_tokens - table.num_tokens();
      if (left <= 0) break;
      table.AppendShared(span.page, std::min(left, span.num_tokens), &pool_);
    }
  }
}

bool KeptContexts::TakeMore(ContextId id, int32_t wanted, Sequence* sequence) const {
  const int32_t begin = sequence->num_computed();
  const auto found = contexts_.find(id);
  if (found == contexts_.end() || begin % pool_.page_tokens() != 0) return false;
  const Context& context = found->second;
  const int32_t same = NumSame(context, *sequence, wanted);
  int32_t end = same;
  // The first span of a table from `begin` on.
  const auto first_of = [&](const KeptTable& table) {
    return static_cast<size_t>((begin - table.num_dropped) / pool_.page_tokens());
  };
  for (const KeptTable& table : context.tables) {
    if (table.num_dropped > begin) return false;
    int32_t there = begin;
    for (size_t i = first_of(table); i < table.spans.size(); ++i) {
      if (!IsThere(table.spans[i])) break;
      there += table.spans[i].num_tokens;
      if (table.spans[i].num_tokens < pool_.page_tokens()) break;
    }
    end = std::min(end, there);
  }
  if (end <= begin) return false;
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    PageTable& table = sequence->tables[group];
    for (size_t i = first_of(context.tables[group]); table.num_tokens() < end; ++i) {
      const KeptSpan& span = context.tables[group].spans[i];
      table.AppendShared(span.page, std::min(end - table.num_tokens(), span.num_tokens), &pool_);
    }
  }
  return true;
}

absl::Status KeptContexts::CheckIntegrity() const {
  absl::flat_hash_map<PageId, int32_t> users;
  for (const auto& [id, context] : contexts_) {
    for (const KeptTable& table : context.tables) {
      for (const KeptSpan& span : table.spans) {
        const PageUse& use = uses_[Index(span.page)];
        if (pool_.generation(span.page) == span.generation && use.generation == span.generation) {
          ++users[span.page];
        }
      }
    }
  }
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    const PageUse& use = uses_[page];
    const auto found = users.find(PageId{page});
    const int32_t counted = found == users.end() ? 0 : found->second;
    const bool is_ours = pool_.IsOwnedBy(PageId{page}, this);
    if (is_ours && (use.generation != pool_.generation(PageId{page}) || use.users != counted ||
                    counted == 0)) {
      return absl::InternalError(
          absl::StrCat("page ", page, " is in ", counted, " contexts and counts ", use.users));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
