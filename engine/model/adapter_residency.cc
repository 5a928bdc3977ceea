#include "engine/model/adapter_residency.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

using Images = std::span<const std::shared_ptr<const AdapterImage>>;

// The image of all ranks.
const AdapterImage& ImageOf(Images adapters, AdapterId id) {
  const auto found = std::find_if(adapters.begin(), adapters.end(),
                                  [&](const auto& image) { return image->id == id; });
  HEDDLE_CHECK(found != adapters.end(), "a plan names an adapter without its image");
  return **found;
}

std::span<const PageId> PagesOf(const StepPlan& plan, const AdapterBind& bind) {
  return std::span(plan.adapter_pages)
      .subspan(static_cast<size_t>(bind.page_begin), static_cast<size_t>(bind.num_pages));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterResidency>> AdapterResidency::Create(
    kernels::Device& device, const ModelSpec& spec, const ExecutorLimits& limits) {
  std::unique_ptr<AdapterResidency> residency(new AdapterResidency(spec.index()));
  HEDDLE_ASSIGN_OR_RETURN(residency->tables_,
                          AdapterTables::Create(device, spec, limits.adapter_slots,
                                                limits.adapter_max_rank, limits.adapter_dtype));
  residency->pages_of_slot_.resize(static_cast<size_t>(limits.adapter_slots));
  return residency;
}

void AdapterResidency::AddPagesOf(const StepPlan& plan, PagesInUse* pages) const {
  for (const SequenceSlice& slice : plan.sequences) {
    if (slice.adapter_slot < 0) continue;
    pages->AddRead(pages_of_slot_[static_cast<size_t>(slice.adapter_slot)]);
  }
}

bool AdapterResidency::MayApplyBeside(const StepPlan& plan, const StepPlan& in_flight,
                                      const PagesInUse& in_use) const {
  const auto uses_slot = [&](int32_t slot) {
    return std::any_of(in_flight.sequences.begin(), in_flight.sequences.end(),
                       [&](const SequenceSlice& slice) { return slice.adapter_slot == slot; });
  };
  // A bind writes the tables in its pages, too.
  const auto touches_use = [&](const AdapterBind& bind) {
    const std::span<const PageId> pages = PagesOf(plan, bind);
    return uses_slot(bind.slot) || std::any_of(pages.begin(), pages.end(),
                                               [&](PageId page) { return in_use.IsUsed(page); });
  };
  return std::none_of(plan.adapter_loads.begin(), plan.adapter_loads.end(),
                      [&](const AdapterPageLoad& load) { return in_use.IsUsed(load.page); }) &&
         std::none_of(plan.adapter_binds.begin(), plan.adapter_binds.end(), touches_use);
}

absl::Status AdapterResidency::Apply(kernels::Device& device, const KvStorage& storage,
                                     const StepPlan& plan, Images adapters) {
  for (const AdapterPageLoad& load : plan.adapter_loads) {
    const AdapterImage& all = ImageOf(adapters, load.adapter);
    const AdapterImage& image = all.OfRank(rank_);
    HEDDLE_CHECK(
        image.page_bytes == storage.page_bytes() && load.image_page < all.pages_of_each_rank(),
        "an adapter's image has pages of another size, or fewer");
    if (load.image_page >= image.num_pages) continue;  // other ranks need more
    HEDDLE_RETURN_IF_ERROR(storage.Upload(device, load.page, image.page(load.image_page).data(),
                                          /*beside=*/true));
  }
  for (const AdapterBind& bind : plan.adapter_binds) {
    const std::span<const PageId> pages = PagesOf(plan, bind);
    addresses_.clear();
    for (const PageId page : pages) addresses_.push_back(storage.page(page));
    HEDDLE_RETURN_IF_ERROR(tables_->Bind(
        device, bind.slot, bind.scale, ImageOf(adapters, bind.adapter).OfRank(rank_), addresses_));
    pages_of_slot_[static_cast<size_t>(bind.slot)].assign(pages.begin(), pages.end());
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
