#include "scheduler/adapter_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::AdapterId;
using engine::Index;

AdapterPool::AdapterPool(const SchedulerOptions& options, PageAllocator* pool,
                         const StepBudget& budget, SchedulerStats* totals)
    : options_(options), pool_(*pool), budget_(budget), totals_(*totals) {
  if (options.adapter_slots == 0) return;
  HEDDLE_CHECK(options.adapter_slots >= std::min(options.max_step_seqs, options.max_step_tokens),
               "each running sequence may need an adapter slot");
  HEDDLE_CHECK(options.adapter_load_pages > 0, "no step may load a page of an adapter");
  contents_.resize(static_cast<size_t>(pool->num_pages()));
  slots_.resize(static_cast<size_t>(options.adapter_slots));
}

const AdapterPool::Adapter* AdapterPool::Find(AdapterId id) const {
  auto it = adapters_.find(id);
  return it == adapters_.end() ? nullptr : it->second.get();
}

AdapterPool::Adapter* AdapterPool::FindOrAdd(const AdapterUse& use) {
  std::unique_ptr<Adapter>& adapter = adapters_[use.id];
  if (adapter == nullptr) {
    adapter = std::make_unique<Adapter>();
    adapter->id = use.id;
    adapter->pages.resize(static_cast<size_t>(use.num_pages));
  }
  HEDDLE_CHECK(adapter->num_pages() == use.num_pages, "an adapter's number of pages has changed");
  return adapter.get();
}

int32_t AdapterPool::PagesToUse(const AdapterUse& use) const {
  if (use.id == AdapterId{}) return 0;
  const Adapter* adapter = Find(use.id);
  // Pages without users count as free, whatever they hold.
  return adapter && adapter->users > 0 ? 0 : use.num_pages;
}

bool AdapterPool::NeedsLoads(const AdapterUse& use) const {
  if (use.id == AdapterId{}) return false;
  const Adapter* adapter = Find(use.id);
  return adapter == nullptr || !adapter->is_complete();
}

int32_t AdapterPool::PagesToLoad(const AdapterUse& use) const {
  if (use.id == AdapterId{}) return 0;
  const Adapter* adapter = Find(use.id);
  if (adapter == nullptr) return use.num_pages;
  return adapter->users > 0 ? 0 : adapter->num_pages() - adapter->num_loaded;
}

int32_t AdapterPool::NumUsers(const AdapterUse& use) const {
  const Adapter* adapter = Find(use.id);
  return adapter == nullptr ? 0 : adapter->users;
}

void AdapterPool::Use(Sequence* sequence, int64_t now_us) {
  const AdapterUse& use = sequence->request->request.adapter;
  if (use.id == AdapterId{}) return;
  Adapter* adapter = FindOrAdd(use);
  if (adapter->users == 0) {
    adapter->image = use.image;
    Place(adapter);
    if (!adapter->is_complete()) loading_.push_back(adapter);
  }
  ++totals_.adapter_uses;
  if (adapter->is_complete()) ++totals_.adapter_hits;
  if (!adapter->is_complete()) ++num_waiting_;
  ++adapter->users;
  ++num_unbound_;
  sequence->uses_adapter = true;
  sequence->adapter_slot = -1;
  sequence->adapter_since_us = now_us;
}

// Takes the pages that are there before it asks for others, which could evict them.
void AdapterPool::Place(Adapter* adapter) {
  for (Page& page : adapter->pages) {
    if (page.state == PageState::kLoaded) pool_.Share(page.id);
  }
  for (Page& page : adapter->pages) {
    if (page.state == PageState::kLoaded) continue;
    page = {pool_.AllocateOne(), PageState::kPlaced};
  }
}

void AdapterPool::UseAs(const Sequence& carrier, Sequence* branch) {
  branch->uses_adapter = carrier.uses_adapter;
  branch->adapter_slot = carrier.adapter_slot;
  if (!carrier.uses_adapter) return;
  HEDDLE_CHECK(carrier.adapter_slot >= 0, "a sequence forks before it has its adapter");
  ++adapters_[carrier.request->request.adapter.id]->users;
  ++slots_[carrier.adapter_slot].users;
}

void AdapterPool::HandOver(Sequence* sequence, Sequence* heir) {
  heir->uses_adapter = std::exchange(sequence->uses_adapter, false);
  heir->adapter_slot = std::exchange(sequence->adapter_slot, -1);
  heir->adapter_since_us = sequence->adapter_since_us;
}

void AdapterPool::Leave(Sequence* sequence) {
  if (!sequence->uses_adapter) return;
  Adapter* adapter = adapters_[sequence->request->request.adapter.id].get();
  sequence->uses_adapter = false;
  const int32_t slot = std::exchange(sequence->adapter_slot, -1);
  if (slot < 0) {
    --num_unbound_;
  } else if (--slots_[slot].users == 0 && std::erase(binds_, slot) > 0) {
    slots_[slot].is_bound = false;  // the plan in the making does not bind it after all
  }
  if (!adapter->is_complete()) --num_waiting_;
  if (--adapter->users == 0) GiveBack(adapter);
}

// Keeps loaded pages as evictable content, and frees the others.
void AdapterPool::GiveBack(Adapter* adapter) {
  std::erase(loading_, adapter);
  std::erase_if(loads_, [adapter](const Load& load) { return load.adapter == adapter; });
  adapter->num_chosen = 0;
  adapter->image.reset();
  for (Page& page : adapter->pages) {
    const PageId id = page.id;
    if (page.state != PageState::kLoaded) page = {};
    pool_.ReleaseOfSequence(id);
  }
  if (adapter->num_loaded < adapter->num_pages()) Unbind(adapter);
  if (adapter->num_loaded == 0) Forget(adapter);
}

void AdapterPool::Unbind(Adapter* adapter) {
  for (int32_t slot : adapter->slots) slots_[slot].is_bound = false;
}

void AdapterPool::Forget(Adapter* adapter) {
  for (int32_t slot : adapter->slots) slots_[slot].adapter = AdapterId{};
  adapters_.erase(adapter->id);
}

double AdapterPool::Credit(PageId, double evicted_last) {
  return evicted_last + budget_.AdapterPageUs();
}

void AdapterPool::Evicted(PageId id) {
  const Content content = std::exchange(contents_[Index(id)], Content{});
  Adapter* adapter = content.adapter;
  adapter->pages[content.page] = {};
  if (adapter->num_loaded == adapter->num_pages()) {
    --num_resident_;
    Unbind(adapter);
  }
  --adapter->num_loaded;
  --num_loaded_;
  ++totals_.adapter_pages_evicted;
  // While Place asks for pages, the adapter's own are referenced, and it has a page or a user.
  if (adapter->num_loaded == 0 && adapter->users == 0) Forget(adapter);
}

void AdapterPool::ChooseLoads(bool has_others, const RunningSet& running, int64_t now_us) {
  int32_t left = options_.adapter_load_pages;
  if (!has_others && !loading_.empty()) {
    const Adapter& first = *loading_.front();
    left = std::max(left, first.num_pages() - first.num_loaded);
  }
  size_t completed = 0;
  for (Adapter* adapter : loading_) {
    for (int32_t i = 0; i < adapter->num_pages() && left > 0; ++i) {
      if (adapter->pages[i].state != PageState::kPlaced) continue;
      adapter->pages[i].state = PageState::kChosen;
      ++adapter->num_chosen;
      loads_.push_back({adapter, i});
      --left;
    }
    if (!adapter->is_complete()) break;
    num_waiting_ -= adapter->users;
    ++completed;
  }
  loading_.erase(loading_.begin(), loading_.begin() + static_cast<ptrdiff_t>(completed));
  if (num_unbound_ == 0) return;
  for (Sequence* sequence : running) {
    if (IsReady(*sequence)) continue;
    const AdapterUse& use = sequence->request->request.adapter;
    Adapter* adapter = adapters_[use.id].get();
    if (!adapter->is_complete()) continue;
    const int32_t slot = SlotFor(adapter, use.scale);
    if (slot < 0) continue;
    ++slots_[slot].users;
    --num_unbound_;
    sequence->adapter_slot = slot;
    totals_.adapter_wait_us += now_us - sequence->adapter_since_us;
  }
}

int32_t AdapterPool::BoundSlot(const Adapter& adapter, float scale) const {
  for (int32_t slot : adapter.slots) {
    if (slots_[slot].is_bound && slots_[slot].scale == scale) return slot;
  }
  return -1;
}

// The slot of an adapter at a scale; if it has none, the one of those that nobody uses that was
// used longest ago. -1 if steps in flight have rows of all of them: there is one when these are
// done.
int32_t AdapterPool::SlotFor(Adapter* adapter, float scale) {
  if (const int32_t bound = BoundSlot(*adapter, scale); bound >= 0) return bound;
  int32_t best = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.users > 0 || slot.last_step > done_step_) continue;
    if (best < 0 || slot.last_step < slots_[best].last_step) best = static_cast<int32_t>(i);
  }
  if (best < 0) return -1;
  Slot& slot = slots_[best];
  if (auto last = adapters_.find(slot.adapter); last != adapters_.end()) {
    std::erase(last->second->slots, best);
  }
  slot.adapter = adapter->id;
  slot.scale = scale;
  slot.is_bound = true;
  adapter->slots.push_back(best);
  binds_.push_back(best);
  return best;
}

void AdapterPool::MarkLoaded(Adapter* adapter, int32_t page, engine::StepPlan* plan) {
  const PageId id = adapter->pages[page].id;
  adapter->pages[page].state = PageState::kLoaded;
  contents_[Index(id)] = {adapter, page};
  pool_.SetOwner(id, this);
  plan->adapter_loads.push_back({adapter->id, page, id});
  ++num_loaded_;
  ++totals_.adapter_pages_loaded;
  if (++adapter->num_loaded == adapter->num_pages()) ++num_resident_;
}

void AdapterPool::Announce(Adapter* adapter,
                           const std::shared_ptr<const engine::AdapterImage>& image, uint64_t step,
                           engine::StepLocals* locals) {
  if (std::exchange(adapter->announced_step, step) != step) locals->adapters.push_back(image);
}

void AdapterPool::Write(engine::StepPlan* plan, engine::StepLocals* locals) {
  for (const Load& load : loads_) {
    --load.adapter->num_chosen;
    MarkLoaded(load.adapter, load.page, plan);
    Announce(load.adapter, load.adapter->image, plan->step, locals);
  }
  for (int32_t slot : binds_) WriteBind(slot, plan, locals);
  loads_.clear();
  binds_.clear();
}

void AdapterPool::WriteBind(int32_t slot, engine::StepPlan* plan, engine::StepLocals* locals) {
  Adapter* adapter = adapters_[slots_[slot].adapter].get();
  plan->adapter_binds.push_back({.adapter = adapter->id,
                                 .slot = slot,
                                 .scale = slots_[slot].scale,
                                 .page_begin = static_cast<int32_t>(plan->adapter_pages.size()),
                                 .num_pages = adapter->num_pages()});
  for (const Page& page : adapter->pages) plan->adapter_pages.push_back(page.id);
  Announce(adapter, adapter->image, plan->step, locals);
}

int32_t AdapterPool::Prefetch(RequestState* request, int32_t max_pages, engine::StepPlan* plan,
                              engine::StepLocals* locals) {
  const AdapterUse& use = request->request.adapter;
  if (use.id == AdapterId{} || request->num_prefetched >= use.num_pages || max_pages <= 0) return 0;
  const Adapter* known = Find(use.id);
  if (known && known->users > 0) return 0;  // it has all its places
  Adapter* adapter = nullptr;
  int32_t count = 0;
  for (; request->num_prefetched < use.num_pages; ++request->num_prefetched) {
    const int32_t page = request->num_prefetched;
    if (known && known->pages[page].state == PageState::kLoaded) continue;
    if (count == max_pages) break;
    const PageId id = pool_.AllocateOne();  // may evict the last page of `known`
    adapter = FindOrAdd(use);
    known = adapter;
    adapter->pages[page].id = id;
    MarkLoaded(adapter, page, plan);
    prefetched_.push_back(id);
    ++count;
  }
  if (count > 0) Announce(adapter, use.image, plan->step, locals);
  return count;
}

void AdapterPool::EndPrefetch() {
  for (PageId page : prefetched_) pool_.Release(page);
  prefetched_.clear();
}

void AdapterPool::AddTo(SchedulerStats* stats) const {
  stats->adapters_resident = num_resident_;
  stats->adapter_pages = num_loaded_;
  stats->adapter_waiting = num_waiting_;
}

void AdapterPool::List(size_t limit, AdapterLists* lists) const {
  for (const bool used : {true, false}) {
    for (const auto& [id, adapter] : adapters_) {
      if (used != (adapter->users > 0)) continue;
      const bool is_resident = adapter->num_loaded == adapter->num_pages();
      std::vector<AdapterId>& list = is_resident ? lists->resident : lists->waiting;
      if ((is_resident || used) && list.size() < limit) list.push_back(id);
    }
  }
}

void AdapterPool::AddReferences(std::span<int32_t> references) const {
  for (const auto& [id, adapter] : adapters_) {
    if (adapter->users == 0) continue;
    for (const Page& page : adapter->pages) ++references[Index(page.id)];
  }
}

absl::Status AdapterPool::CheckAdapter(const Adapter& adapter) const {
  int32_t loaded = 0;
  for (int32_t i = 0; i < adapter.num_pages(); ++i) {
    const Page& page = adapter.pages[i];
    const bool has_place = Index(page.id) >= 0;
    if (has_place != (page.state != PageState::kAbsent) || page.state == PageState::kChosen ||
        (page.state != PageState::kLoaded && has_place != (adapter.users > 0))) {
      return absl::InternalError(absl::StrCat("page ", i, " of an adapter with ", adapter.users,
                                              " users has state ", static_cast<int>(page.state)));
    }
    if (page.state != PageState::kLoaded) continue;
    ++loaded;
    const Content& content = contents_[Index(page.id)];
    if (content.adapter != &adapter || content.page != i || !pool_.is_owned(page.id)) {
      return absl::InternalError(
          absl::StrCat("page ", Index(page.id), " is not known as page ", i, " of its adapter"));
    }
  }
  if (loaded != adapter.num_loaded || (loaded == 0 && adapter.users == 0)) {
    return absl::InternalError(absl::StrCat("an adapter with ", adapter.users, " users counts ",
                                            adapter.num_loaded, " loaded pages of ", loaded));
  }
  return absl::OkStatus();
}

absl::Status AdapterPool::CheckUsers(const RunningSet& running) const {
  absl::flat_hash_map<AdapterId, int32_t> users;
  std::vector<int32_t> slot_users(slots_.size(), 0);
  int32_t unbound = 0, waiting = 0;
  for (const Sequence* sequence : running) {
    const AdapterUse& use = sequence->request->request.adapter;
    if (sequence->uses_adapter != (use.id != AdapterId{})) {
      return absl::InternalError("a running sequence has lost its adapter, or has none to have");
    }
    if (!sequence->uses_adapter) continue;
    ++users[use.id];
    if (NeedsLoads(use)) ++waiting;
    if (sequence->adapter_slot < 0) {
      ++unbound;
      continue;
    }
    const Slot& slot = slots_[sequence->adapter_slot];
    ++slot_users[sequence->adapter_slot];
    if (slot.adapter != use.id || slot.scale != use.scale || !slot.is_bound || NeedsLoads(use)) {
      return absl::InternalError(absl::StrCat("slot ", sequence->adapter_slot,
                                              " is not bound to the adapter of its sequence"));
    }
  }
  for (const auto& [id, adapter] : adapters_) {
    auto it = users.find(id);
    if (adapter->users != (it == users.end() ? 0 : it->second)) {
      return absl::InternalError(absl::StrCat("an adapter counts ", adapter->users, " users"));
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].users != slot_users[i]) {
      return absl::InternalError(absl::StrCat("slot ", i, " counts ", slots_[i].users, " users"));
    }
  }
  if (unbound != num_unbound_ || waiting != num_waiting_) {
    return absl::InternalError(absl::StrCat(unbound, " sequences have no slot and ", waiting,
                                            " wait for pages; ", num_unbound_, " and ",
                                            num_waiting_, " are counted"));
  }
  return absl::OkStatus();
}

absl::Status AdapterPool::CheckIntegrity(const RunningSet& running) const {
  int32_t resident = 0, loaded = 0;
  for (const auto& [id, adapter] : adapters_) {
    if (absl::Status status = CheckAdapter(*adapter); !status.ok()) return status;
    loaded += adapter->num_loaded;
    resident += adapter->num_loaded == adapter->num_pages() ? 1 : 0;
  }
  if (loaded != num_loaded_ || resident != num_resident_) {
    return absl::InternalError(
        absl::StrCat(loaded, " pages of adapters are loaded and ", num_loaded_, " are counted"));
  }
  return CheckUsers(running);
}

}  // namespace heddle::scheduler
