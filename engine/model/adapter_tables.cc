#include "engine/model/adapter_tables.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

constexpr int64_t kPointerBytes = sizeof(const void*);

std::vector<kernels::AdapterPart> StackedParts(std::span<const int64_t> rows) {
  std::vector<kernels::AdapterPart> parts;
  int64_t first = 0;
  for (const int64_t each : rows) {
    parts.push_back({.first_row = first, .rows = each});
    first += each;
  }
  return parts;
}

// The linears that nearly every adapter changes have their argument always, so that what a step
// launches does not depend on the adapters at hand.
bool IsPlainLinear(AdapterSite site) { return site <= AdapterSite::kKvA; }

// A pointer table of an image, and the blocks that it points to.
struct PointerTable {
  ImagePlace at;
  std::span<const ImagePlace> blocks;

  bool operator<(const PointerTable& other) const {
    return std::pair(at.page, at.offset) < std::pair(other.at.page, other.at.offset);
  }
  int64_t end() const { return at.offset + static_cast<int64_t>(blocks.size()) * kPointerBytes; }
};

}  // namespace

std::vector<AdapterTables::Entry> AdapterTables::EntriesOf(const ModelSpec& spec) {
  std::vector<Entry> entries;
  int32_t first = 0;
  for (int32_t i = 0; i <= spec.n_layers(); ++i) {
    for (int32_t site = 0; site < kNumAdapterSites; ++site) {
      Entry& entry = entries.emplace_back();
      entry.site = static_cast<AdapterSite>(site);
      const SiteShape shape = ShapeOf(spec, i < spec.n_layers() ? i : kModelLayer, entry.site);
      entry.members = shape.members;
      entry.parts = StackedParts(shape.parts);
      entry.inputs = shape.inputs;
      entry.num_tokens = entry.site == AdapterSite::kEmbedding ? shape.inputs : 0;
      entry.first = first;
      first += shape.members * static_cast<int32_t>(shape.parts.size());
    }
  }
  return entries;
}

// Whether the model, or this rank's share of it, has what the factors change, in their shape.
bool AdapterTables::IsHere(const ImageFactors& f) const {
  const auto n_layers = static_cast<int32_t>(entries_.size() / kNumAdapterSites) - 1;
  if (f.layer != kModelLayer && (f.layer < 0 || f.layer >= n_layers)) return false;
  const Entry& entry = entries_[IndexOf(f.layer, f.site)];
  if (f.part < 0 || f.part >= static_cast<int32_t>(entry.parts.size()) || f.member < 0 ||
      f.member >= entry.members || f.outputs != entry.parts[static_cast<size_t>(f.part)].rows) {
    return false;
  }
  if (f.rank == 0) return true;
  if (f.inputs != entry.inputs || (f.a.empty() && f.b.empty())) return false;
  if (f.a.empty()) return f.rank == f.inputs;
  if (f.b.empty()) return f.rank == f.outputs;
  return f.rank > 0 && f.rank <= entry.matrix.max_rank;
}

size_t AdapterTables::IndexOf(int32_t layer, AdapterSite site) const {
  const size_t last = entries_.size() / kNumAdapterSites - 1;
  const size_t row = layer == kModelLayer ? last : static_cast<size_t>(layer);
  return row * kNumAdapterSites + static_cast<size_t>(site);
}

int64_t AdapterTables::Bytes(const ModelSpec& spec, int32_t slots) {
  const std::vector<Entry> entries = EntriesOf(spec);
  const Entry& last = entries.back();
  const int64_t per_slot = last.first + last.members * static_cast<int64_t>(last.parts.size());
  return slots * per_slot * static_cast<int64_t>(sizeof(kernels::AdapterFactors));
}

absl::StatusOr<std::unique_ptr<AdapterTables>> AdapterTables::Create(kernels::Device& device,
                                                                     const ModelSpec& spec,
                                                                     int32_t slots,
                                                                     int32_t max_rank,
                                                                     kernels::DType dtype) {
  HEDDLE_CHECK(slots > 0 && max_rank > 0 && max_rank <= kernels::kMaxAdapterRank,
               "adapters: no slots, or a rank that kernels do not take");
  std::unique_ptr<AdapterTables> tables(new AdapterTables);
  tables->num_slots_ = slots;
  tables->entries_ = EntriesOf(spec);
  const Entry& last = tables->entries_.back();
  tables->slot_stride_ = last.first + last.members * static_cast<int32_t>(last.parts.size());
  tables->slot_row_.resize(static_cast<size_t>(tables->slot_stride_));
  tables->uses_.assign(static_cast<size_t>(slots), std::vector<Use>(tables->entries_.size()));
  HEDDLE_ASSIGN_OR_RETURN(tables->factors_,
                          device.Allocate(std::max<int64_t>(1, Bytes(spec, slots))));
  const auto* factors = static_cast<const kernels::AdapterFactors*>(tables->factors_->data());
  const int64_t first_token =
      spec.is_part() ? spec.vocab_borders[static_cast<size_t>(spec.rank)] : 0;
  for (Entry& entry : tables->entries_) {
    entry.matrix = {.dtype = dtype,
                    .parts = entry.parts,
                    .factors = factors + entry.first,
                    .n_slots = slots,
                    .slot_stride = tables->slot_stride_,
                    .max_rank = max_rank,
                    .num_tokens = entry.num_tokens,
                    .first_token = first_token};
  }
  return tables;
}

const kernels::AdapterMatrix* AdapterTables::matrix(int32_t layer, AdapterSite site) const {
  const Entry& entry = entries_[IndexOf(layer, site)];
  const bool is_needed = IsPlainLinear(site) ? entry.members > 0 : entry.num_bound > 0;
  return is_needed ? &entry.matrix : nullptr;
}

void AdapterTables::CountUses(int32_t slot, const std::vector<Use>& uses) {
  std::vector<Use>& before = uses_[static_cast<size_t>(slot)];
  for (size_t i = 0; i < uses.size(); ++i) {
    Entry& entry = entries_[i];
    entry.num_bound +=
        static_cast<int32_t>(uses[i].changes) - static_cast<int32_t>(before[i].changes);
    entry.num_gains +=
        static_cast<int32_t>(uses[i].has_gains) - static_cast<int32_t>(before[i].has_gains);
    entry.matrix.has_gains = entry.num_gains > 0;
  }
  before = uses;
}

absl::Status AdapterTables::Bind(kernels::Device& device, int32_t slot, float scale,
                                 const AdapterImage& image, std::span<std::byte* const> pages) {
  HEDDLE_CHECK(slot >= 0 && slot < num_slots_, "an adapter is bound to a slot that does not exist");
  HEDDLE_CHECK(static_cast<int32_t>(pages.size()) >= image.num_pages,
               "an adapter is bound with some of its pages only");
  const auto address = [&](const ImagePlace& place) -> const void* {
    return place == kNoPlace ? nullptr : pages[static_cast<size_t>(place.page)] + place.offset;
  };
  const auto table = [&](const ImagePlace& place, bool is_empty) {
    return is_empty ? nullptr : static_cast<const void* const*>(address(place));
  };
  std::fill(slot_row_.begin(), slot_row_.end(), kernels::AdapterFactors{});
  std::vector<Use> uses(entries_.size());
  for (const ImageFactors& factors : image.factors) {
    if (image.dtype != entries_.front().matrix.dtype || !IsHere(factors)) {
      return absl::InvalidArgumentError("an adapter's image was made for another model");
    }
    const size_t index = IndexOf(factors.layer, factors.site);
    Entry& entry = entries_[index];
    // Kernels size their memory by it; a whole matrix counts its columns as ranks.
    entry.matrix.max_rank = std::max(entry.matrix.max_rank, factors.rank);
    uses[index].changes = true;
    uses[index].has_gains = uses[index].has_gains || factors.gain != kNoPlace;
    const int32_t at =
        entry.first + factors.member * static_cast<int32_t>(entry.parts.size()) + factors.part;
    slot_row_[static_cast<size_t>(at)] = {.a = table(factors.a_table, factors.a.empty()),
                                          .b = table(factors.b_table, factors.b.empty()),
                                          .gain = static_cast<const float*>(address(factors.gain)),
                                          .bias = static_cast<const float*>(address(factors.bias)),
                                          .rank = factors.rank,
                                          .block_rows = std::max(1, factors.block_rows),
                                          .token_rows = std::max(1, factors.a_block_rows),
                                          .scale = factors.scale * scale,
                                          .vector_scale = scale};
  }
  CountUses(slot, uses);
  HEDDLE_RETURN_IF_ERROR(WritePointers(device, image, pages));
  const auto row_bytes = static_cast<int64_t>(slot_row_.size() * sizeof(kernels::AdapterFactors));
  auto* to = static_cast<std::byte*>(factors_->data()) + slot * row_bytes;
  return device.UploadBeside(to, slot_row_.data(), row_bytes);
}

// Tables that follow each other in a page are one upload.
absl::Status AdapterTables::WritePointers(kernels::Device& device, const AdapterImage& image,
                                          std::span<std::byte* const> pages) {
  std::vector<PointerTable> tables;
  tables.reserve(2 * image.factors.size());
  for (const ImageFactors& factors : image.factors) {
    tables.push_back({factors.a_table, factors.a});
    tables.push_back({factors.b_table, factors.b});
  }
  std::sort(tables.begin(), tables.end());
  for (size_t i = 0; i < tables.size();) {
    const ImagePlace begin = tables[i].at;
    int64_t end = begin.offset;
    pointers_.clear();
    for (; i < tables.size() && tables[i].at.page == begin.page && tables[i].at.offset == end;
         ++i) {
      for (const ImagePlace& block : tables[i].blocks) {
        pointers_.push_back(pages[static_cast<size_t>(block.page)] + block.offset);
      }
      end = tables[i].end();
    }
    if (pointers_.empty()) continue;  // tables of identities
    HEDDLE_RETURN_IF_ERROR(
        device.UploadBeside(pages[static_cast<size_t>(begin.page)] + begin.offset, pointers_.data(),
                            end - begin.offset));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
