#include "scheduler/kept_contexts.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace heddle::scheduler {

using engine::Index;

void KeptContexts::Keep(ContextId id, const Sequence& sequence, int32_t num_tokens) {
  num_tokens = std::clamp(num_tokens, 0, sequence.num_tokens());
  Context context = Update(sequence);
  Cut(num_tokens, &context);
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    AddSpans(sequence.tables[group], group, num_tokens, &context.tables[group]);
  }
  Insert(id, std::move(context));
}

// Brings what is known of the sequence up to date. The new lists are counted before the old ones
// go, since they have most blocks in common.
const KeptContexts::Context& KeptContexts::Update(const Sequence& sequence) {
  const GenerationRequest& request = sequence.request->request;
  const auto [place, is_new] = followed_.try_emplace(ContextOf(sequence));
  Followed& followed = place->second;
  const bool is_known = !is_new && followed.request == request.id;
  Context next = is_known ? followed.context : BeginOf(sequence);
  const auto groups = static_cast<size_t>(limits_.num_groups);
  followed.versions.resize(groups);
  next.layout = sequence.request->layout.First(sequence.num_tokens());
  const std::span<const TokenId> prompt = request.prompt;
  if (next.tokens.size() < prompt.size()) next.tokens.Append(prompt.subspan(next.tokens.size()));
  next.tokens.Append(std::span(sequence.generated).subspan(next.tokens.size() - prompt.size()));
  bool has_changed = !is_known;
  for (size_t group = 0; group < groups; ++group) {
    const PageTable& table = sequence.tables[static_cast<int32_t>(group)];
    const bool is_same = is_known && followed.versions[group] == table.version();
    has_changed |= FollowTable(table, sequence.num_tokens(), is_same, &next.tables[group]);
    followed.versions[group] = table.version();
  }
  if (has_changed) {
    Enter(next);
    Leave(followed.context);
  }
  followed.request = request.id;
  followed.context = std::move(next);
  return followed.context;
}

// The lists of a sequence that was not followed so far: what others have of its tokens and full
// pages. Update adds the rest, and takes out pages that are others' alone.
KeptContexts::Context KeptContexts::BeginOf(const Sequence& sequence) const {
  const GenerationRequest& request = sequence.request->request;
  const Context* const relative = Relative(sequence);
  const int32_t same =
      relative == nullptr ? 0 : NumSame(*relative, sequence, sequence.num_tokens());
  if (same == 0) {
    Context context{.cache_space = request.cache_space,
                    .adapter = request.adapter.id,
                    .adapter_scale = request.adapter.scale};
    context.tables.resize(static_cast<size_t>(limits_.num_groups));
    return context;
  }
  Context context = *relative;
  Cut(same, &context);
  for (KeptTable& table : context.tables) {
    KeptSpans& spans = table.spans;
    if (!spans.empty() && spans.back().num_tokens < pool_.page_tokens()) {
      spans.Cut(spans.size() - 1);
    }
  }
  return context;
}

// The lists of another branch of the request, which begin as the sequence does, or of the context
// that the request came with; or null.
const KeptContexts::Context* KeptContexts::Relative(const Sequence& sequence) const {
  const RequestState& state = *sequence.request;
  for (const Sequence& branch : state.branches) {
    const auto other = followed_.find(ContextOf(branch));
    if (&branch == &sequence || other == followed_.end()) continue;
    if (other->second.request == state.request.id) return &other->second.context;
  }
  const auto from = contexts_.find(state.request.from);
  return from == contexts_.end() ? nullptr : &from->second;
}

// Makes `kept` the list of the table's full pages, as far as their tokens are known. `is_same`:
// what it has already is in the table. Returns whether it has changed.
bool KeptContexts::FollowTable(const PageTable& table, int32_t num_tokens, bool is_same,
                               KeptTable* kept) const {
  bool has_changed = kept->num_dropped != table.num_dropped();
  if (has_changed) *kept = {.num_dropped = table.num_dropped()};
  const std::span<const KvSpan> spans = table.spans();
  const int32_t known = (num_tokens - table.num_dropped()) / pool_.page_tokens();
  size_t full = std::min(spans.size(), static_cast<size_t>(std::max(0, known)));
  if (full == spans.size() && full > 0 && spans.back().num_tokens < pool_.page_tokens()) --full;
  size_t same = std::min(full, kept->spans.size());
  if (!is_same) {
    const auto is_kept = [this](const KvSpan& span, const KeptSpan& other) {
      return span.page == other.page && pool_.generation(span.page) == other.generation;
    };
    size_t found = 0;
    while (found < same && is_kept(spans[found], kept->spans[found])) ++found;
    same = found;
  }
  has_changed |= same != kept->spans.size() || full > same;
  kept->spans.Cut(same);
  for (size_t i = same; i < full; ++i) {
    kept->spans.push_back({spans[i].page, spans[i].num_tokens, pool_.generation(spans[i].page)});
  }
  return has_changed;
}

// Adds the table's spans behind those that `kept` has, up to `num_tokens` places.
void KeptContexts::AddSpans(const PageTable& table, int32_t group, int32_t num_tokens,
                            KeptTable* kept) const {
  const std::span<const KvSpan> spans = table.spans();
  const auto places = static_cast<int32_t>(kept->spans.size()) * pool_.page_tokens();
  int32_t left = num_tokens - kept->num_dropped - places;
  for (size_t i = kept->spans.size(); i < spans.size(); ++i) {
    const KvSpan& span = spans[i];
    if (left <= 0 || (left < span.num_tokens && !limits_.HasPartsOfPages(group))) break;
    kept->spans.push_back(
        {span.page, std::min(left, span.num_tokens), pool_.generation(span.page)});
    left -= span.num_tokens;
  }
}

void KeptContexts::Unfollow(ContextId id) {
  const auto found = followed_.find(id);
  if (found == followed_.end()) return;
  Leave(found->second.context);
  followed_.erase(found);
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
  context->tokens.Cut(static_cast<size_t>(length));
  context->layout = context->layout.First(length);
  const int32_t page_tokens = pool_.page_tokens();
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    KeptTable& table = context->tables[group];
    const int32_t left = std::max(0, length - table.num_dropped);
    const auto pages = static_cast<size_t>((left + page_tokens - 1) / page_tokens);
    if (pages > table.spans.size()) continue;
    table.spans.Cut(pages);
    if (pages == 0) continue;
    const int32_t in_last = left - static_cast<int32_t>(pages - 1) * page_tokens;
    if (table.spans.back().num_tokens <= in_last) continue;
    if (limits_.HasPartsOfPages(group)) {
      table.spans.Edit(pages - 1).num_tokens = in_last;
    } else {
      table.spans.Cut(pages - 1);
    }
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
  if (joined.tokens.NumSame(0, tokens) < joined.tokens.size()) return;
  int32_t length = join.at;
  for (size_t c = 0; c < join.children.size(); ++c) {
    const int32_t before = layout.PlaceOf(length);
    length += join.lengths[c] - join.at;
    const auto found = contexts_.find(join.children[c]);
    if (found == contexts_.end()) continue;
    JoinOne(found->second, join.at, before, layout.PlaceOf(length), tokens, &joined);
  }
  const int32_t end = layout.PlaceOf(length);
  tokens.resize(static_cast<size_t>(end));
  joined.tokens.Append(std::span(tokens).subspan(joined.tokens.size()));
  joined.layout = layout.First(end);
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
    const int32_t in_last = table->spans.back().num_tokens;
    if (in_last < page_tokens && static_cast<int32_t>(pages - 1) * page_tokens + in_last == end) {
      table->spans.Edit(pages - 1).num_tokens = page_tokens;
    }
  }
  if (table->spans.size() > pages) table->spans.Cut(pages);
  while (table->spans.size() < pages) table->spans.push_back({PageId{0}, 0, kLost});
}

// Adds the pages of what `child` has beyond the fork to those of the join, which it has from the
// first page behind place `before` to `end`. Adds none if they do not begin at the fork, or if it
// is no sibling of the others. `tokens` are the join's.
void KeptContexts::JoinOne(const Context& child, int32_t at, int32_t before, int32_t end,
                           std::span<const TokenId> tokens, Context* joined) const {
  const int32_t page_tokens = pool_.page_tokens();
  const int32_t begin = (before + page_tokens - 1) / page_tokens * page_tokens;
  const int32_t fork = child.layout.PlaceOf(at);
  const int32_t own = fork + child.layout.HolesAt(fork);
  const auto num_tokens = static_cast<int32_t>(child.tokens.size());
  const bool is_sibling = child.cache_space == joined->cache_space &&
                          child.adapter == joined->adapter &&
                          child.adapter_scale == joined->adapter_scale;
  const auto common = tokens.first(std::min(tokens.size(), static_cast<size_t>(fork)));
  if (!is_sibling || begin >= end || own >= num_tokens || own % page_tokens != 0 ||
      child.tokens.NumSame(0, common) < common.size() ||
      child.layout.SameAs(joined->layout, fork) < fork) {
    return;
  }
  const auto most = static_cast<size_t>(std::min(end - begin, num_tokens - own));
  const auto same = static_cast<int32_t>(child.tokens.NumSame(
      static_cast<size_t>(own), tokens.subspan(static_cast<size_t>(begin), most)));
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    const KeptSpans& spans = child.tables[group].spans;
    KeptSpans& all = joined->tables[group].spans;
    FillPages(before, &joined->tables[group]);
    const int32_t kept_from = own - child.tables[group].num_dropped;
    if (kept_from < 0) continue;  // a window has passed the fork
    int32_t left = same;
    for (auto i = static_cast<size_t>(kept_from / page_tokens); i < spans.size() && left > 0; ++i) {
      KeptSpan span = spans[i];
      span.num_tokens = std::min(left, span.num_tokens);
      all.push_back(span);
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

// Counts the pages of blocks that are not counted yet.
void KeptContexts::Enter(const Context& context) {
  for (const KeptTable& table : context.tables) {
    int32_t depth = table.num_dropped / pool_.page_tokens();
    for (const std::shared_ptr<KeptSpans::Block>& block : table.spans.blocks()) {
      for (size_t i = 0; i < block->size && !block->mark; ++i) {
        const KeptSpan& span = block->items[i];
        if (pool_.generation(span.page) == span.generation) {
          EnterPage(span, depth + static_cast<int32_t>(i));
        }
      }
      block->mark = true;
      depth += static_cast<int32_t>(block->size);
    }
  }
}

// REQUIRES: the lists are forgotten now.
void KeptContexts::Leave(const Context& context) {
  for (const KeptTable& table : context.tables) {
    for (const std::shared_ptr<KeptSpans::Block>& block : table.spans.blocks()) {
      if (block.use_count() == 1) LeaveBlock(*block);
    }
  }
}

void KeptContexts::LeaveBlock(const KeptSpans::Block& block) {
  for (const KeptSpan& span : std::span(block.items).first(block.size)) {
    PageUse& use = uses_[Index(span.page)];
    if (use.generation != span.generation || use.users == 0) continue;
    if (--use.users == 0 && pool_.IsOwnedBy(span.page, this)) pool_.ClearOwner(span.page);
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
  for (size_t i = 0; i < table.spans.size(); ++i) {
    const KeptSpan& span = table.spans[i];
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
  const size_t num_prompt = request.prompt.size();
  size_t same = context.tokens.NumSame(0, request.prompt);
  if (same == num_prompt) same += context.tokens.NumSame(same, sequence.generated);
  return std::min(most, static_cast<int32_t>(same));
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
    for (size_t i = 0; i < kept.spans.size(); ++i) {
      const KeptSpan& span = kept.spans[i];
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
  absl::flat_hash_set<const KeptSpans::Block*> blocks;
  const auto add = [&blocks](const Context& context) {
    for (const KeptTable& table : context.tables) {
      for (const auto& block : table.spans.blocks()) blocks.insert(block.get());
    }
  };
  for (const auto& [id, context] : contexts_) add(context);
  for (const auto& [id, followed] : followed_) add(followed.context);
  absl::flat_hash_map<PageId, int32_t> users;
  for (const KeptSpans::Block* block : blocks) {
    if (!block->mark) return absl::InternalError("a context has pages that nobody has counted");
    for (const KeptSpan& span : std::span(block->items).first(block->size)) {
      const PageUse& use = uses_[Index(span.page)];
      if (pool_.generation(span.page) == span.generation && use.generation == span.generation) {
        ++users[span.page];
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
          absl::StrCat("page ", page, " is in ", counted, " lists and counts ", use.users));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
