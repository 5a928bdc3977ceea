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
  const auto length = std::clamp(num_tokens, 0, static_cast<int32_t>(context.tokens.size()));
  context.tokens.resize(static_cast<size_t>(length));
  for (int32_t group = 0; group < limits_.num_groups; ++group) {
    KeptTable& table = context.tables[group];
    int32_t left = length - table.num_dropped;
    auto keeps = [&](KeptSpan& span) {
      if (left < span.num_tokens && !limits_.HasPartsOfPages(group)) return false;
      span.num_tokens = std::min(span.num_tokens, std::max(0, left));
      left -= span.num_tokens;
      return span.num_tokens > 0;
    };
    const auto end = std::find_if_not(table.spans.begin(), table.spans.end(), keeps);
    table.spans.erase(end, table.spans.end());
  }
  Insert(to, std::move(context));
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
int32_t KeptContexts::NumThere(const KeptTable& table, int32_t group, int32_t wanted) const {
  int32_t end = table.num_dropped;
  for (const KeptSpan& span : table.spans) {
    if (end >= wanted || !IsThere(span)) break;
    if (end + span.num_tokens > wanted && !limits_.HasPartsOfPages(group)) break;
    end += span.num_tokens;
  }
  end = std::min(end, wanted);
  const int32_t window = limits_.options.windows[group];
  const int32_t first_seen = window == 0 ? 0 : std::max(0, end + 1 - window);
  return table.num_dropped <= first_seen ? end : 0;
}

// The groups' tables need not have lost the same pages, and where one has less of them, the others
// may lack the front of the window behind it: then nothing is taken.
int32_t KeptContexts::NumHeld(ContextId id, const Sequence& sequence, int32_t wanted) const {
  const auto found = contexts_.find(id);
  if (found == contexts_.end()) return 0;
  const Context& context = found->second;
  const GenerationRequest& request = sequence.request->request;
  if (context.cache_space != request.cache_space || context.adapter != request.adapter.id ||
      context.adapter_scale != request.adapter.scale) {
    return 0;
  }
  const auto length = std::min(wanted, static_cast<int32_t>(context.tokens.size()));
  int32_t held = 0;
  while (held < length && context.tokens[held] == sequence.TokenAt(held)) ++held;
  for (bool is_same = false; !is_same && held > 0;) {
    is_same = true;
    for (int32_t group = 0; group < limits_.num_groups; ++group) {
      const int32_t there = NumThere(context.tables[group], group, held);
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
