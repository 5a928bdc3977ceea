// Gives LoRA adapters their pages of the pool and their slots in the executor.
//
// An adapter's factors are the pages of its image (engine/adapter/adapter_image.h). They may be in
// any pages of the pool, and one that was evicted is loaded again by itself. While running
// sequences use an adapter, all of its pages are referenced, once; without users they are evictable
// content like the prefix cache's, and stay as long as their credit lasts. A page is worth the time
// to load it (StepBudget::AdapterPageUs). Adapters without pages and users are forgotten.
//
// A sequence gets all its adapter's pages when it is admitted, and they are loaded over the next
// steps, adapter by adapter in the order in which they were first wanted: nobody who comes later
// delays a load, under any policy. Until the last page is chosen for loading the sequence is left
// out of steps.
//
// A slot is an adapter at a scale, so two scales of an adapter share its pages. The executor's
// tables for a slot name pages: when one of them is evicted, the slot has to be bound again, and to
// a slot that no step in flight has rows of.
//
// Invariants (CheckIntegrity): an adapter's users are the running sequences that have it; with
// users every page has a place, without users only loaded ones have.
// Source: Sheng et al., "S-LoRA", 2023 (unified paging).
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/step.h"
#include "scheduler/page_allocator.h"
#include "scheduler/running_set.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"
#include "scheduler/step_budget.h"

namespace heddle::scheduler {

class AdapterPool final : private PageOwner {
 public:
  // The arguments must outlive it. It becomes the owner of some of the pool's pages.
  AdapterPool(const SchedulerOptions& options, PageAllocator* pool, const StepBudget& budget,
              SchedulerStats* totals);

  // Pages that `use` would take of those that are free now: none while others use the adapter.
  int32_t PagesToUse(const AdapterUse& use) const;
  // Whether pages of the adapter have to be loaded before a sequence can run with it.
  bool NeedsLoads(const AdapterUse& use) const;

  // Pages of the adapter without content in the pool; none while others load them.
  int32_t PagesToLoad(const AdapterUse& use) const;
  // Running sequences that use it.
  int32_t NumUsers(const AdapterUse& use) const;

  // Makes a sequence that gets a place a user of its request's adapter. REQUIRES: the pool has
  // PagesToUse free.
  void Use(Sequence* sequence, int64_t now_us);
  // Makes `branch`, a fork of `carrier`, a user as well.
  void UseAs(const Sequence& carrier, Sequence* branch);
  // Makes `heir` the user in place of `sequence`.
  static void HandOver(Sequence* sequence, Sequence* heir);
  // Ends the use, if there is one.
  void Leave(Sequence* sequence);

  // Whether `sequence` may have rows in the step being planned.
  static bool IsReady(const Sequence& sequence) {
    return !sequence.uses_adapter || sequence.adapter_slot >= 0;
  }
  // Running sequences whose adapter has pages still to be chosen for loading.
  int32_t num_waiting() const { return num_waiting_; }

  // Chooses the pages that this step loads, and gives slots to running sequences whose adapter is
  // complete with them. `has_others`: sequences with nothing to wait for have rows in this step, so
  // loads are limited; without them the first adapter is loaded completely.
  void ChooseLoads(bool has_others, const RunningSet& running, int64_t now_us);

  // Adds what was chosen, and still has users, to the plan.
  void Write(engine::StepPlan* plan, engine::StepLocals* locals);

  // Loads pages of a waiting request's adapter into free pages: at most `max_pages`, each page of
  // the image once per request. Returns how many. Call it behind Write, before the pool's
  // FlushReleases, and EndPrefetch behind the last one.
  int32_t Prefetch(RequestState* request, int32_t max_pages, engine::StepPlan* plan,
                   engine::StepLocals* locals);
  void EndPrefetch();

  // Notes that a step has rows of `slot`, and that all steps up to `step` are done.
  void CountRows(int32_t slot, uint64_t step) { slots_[slot].last_step = step; }
  void CountDone(uint64_t step) { done_step_ = step; }

  void AddTo(SchedulerStats* stats) const;
  // Appends the adapters that are loaded completely, those in use first, and those with users that
  // are not; `limit` bounds the length of each list. O(adapters).
  void List(size_t limit, AdapterLists* lists) const;
  int32_t num_pages() const { return num_loaded_; }  // pages with adapters' content
  // Adds the references that it holds, by page.
  void AddReferences(std::span<int32_t> references) const;
  // INTERNAL names the broken invariant. O(pages + slots + running).
  absl::Status CheckIntegrity(const RunningSet& running) const;

 private:
  enum class PageState : uint8_t {
    kAbsent,  // has no place
    kPlaced,  // has a place, and no content yet
    kChosen,  // the step being planned loads it
    kLoaded,  // owned content; also if the load is in flight, because steps run in order
  };
  struct Page {
    PageId id{-1};
    PageState state = PageState::kAbsent;
  };
  struct Adapter {
    engine::AdapterId id{};
    std::vector<Page> pages;  // in the order of the image
    int32_t num_loaded = 0;
    int32_t num_chosen = 0;
    int32_t users = 0;
    std::vector<int32_t> slots;                         // that were bound to it last
    std::shared_ptr<const engine::AdapterImage> image;  // while it has users
    uint64_t announced_step = 0;                        // whose locals have the image

    int32_t num_pages() const { return static_cast<int32_t>(pages.size()); }
    bool is_complete() const { return num_loaded + num_chosen == num_pages(); }
  };
  struct Slot {
    engine::AdapterId adapter{};
    float scale = 1.0f;
    int32_t users = 0;
    bool is_bound = false;   // the executor's tables name the adapter's present pages
    uint64_t last_step = 0;  // that had rows of it
  };
  struct Load {
    Adapter* adapter;
    int32_t page;
  };
  // The adapter whose content a page of the pool has.
  struct Content {
    Adapter* adapter = nullptr;
    int32_t page = 0;
  };

  const Adapter* Find(engine::AdapterId id) const;
  Adapter* FindOrAdd(const AdapterUse& use);
  void Place(Adapter* adapter);
  void GiveBack(Adapter* adapter);
  void Forget(Adapter* adapter);
  void Unbind(Adapter* adapter);
  int32_t SlotFor(Adapter* adapter, float scale);
  int32_t BoundSlot(const Adapter& adapter, float scale) const;
  void MarkLoaded(Adapter* adapter, int32_t page, engine::StepPlan* plan);
  static void Announce(Adapter* adapter, const std::shared_ptr<const engine::AdapterImage>& image,
                       uint64_t step, engine::StepLocals* locals);
  void WriteBind(int32_t slot, engine::StepPlan* plan, engine::StepLocals* locals);
  absl::Status CheckAdapter(const Adapter& adapter) const;
  absl::Status CheckUsers(const RunningSet& running) const;
  // These implement PageOwner.
  double Credit(PageId page, double evicted_last) override;
  void Evicted(PageId page) override;

  const SchedulerOptions& options_;
  PageAllocator& pool_;
  const StepBudget& budget_;
  SchedulerStats& totals_;
  absl::flat_hash_map<engine::AdapterId, std::unique_ptr<Adapter>> adapters_;
  std::vector<Content> contents_;  // [num_pages], or empty without slots
  std::vector<Slot> slots_;        // [adapter_slots]
  std::vector<Adapter*> loading_;  // with users and not complete, in the order of first use
  int32_t num_waiting_ = 0;
  int32_t num_unbound_ = 0;   // users without a slot
  int32_t num_resident_ = 0;  // adapters with all pages loaded
  int32_t num_loaded_ = 0;    // pages of all adapters
  uint64_t done_step_ = 0;

  // These belong to the step being planned.
  std::vector<Load> loads_;
  std::vector<int32_t> binds_;      // slots
  std::vector<PageId> prefetched_;  // held until EndPrefetch
};

}  // namespace heddle::scheduler
