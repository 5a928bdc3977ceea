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

size_t EntryOf(int32_t layer, AdapterSite site) {
  return static_cast<size_t>(layer) * kNumAdapterSites + static_cast<size_t>(site);
}

int32_t PartsPerSlot(std::span<const LayerAdapterParts> layers) {
  size_t count = 0;
  for (const LayerAdapterParts& layer : layers) {
    for (const auto& site : layer.sites) count += site.size();
  }
  return static_cast<int32_t>(count);
}

std::vector<LayerAdapterParts> PartsOfLayers(const ModelSpec& spec) {
  std::vector<LayerAdapterParts> parts;
  for (const LayerSpec& layer : spec.layers) parts.push_back(AdapterPartsOf(spec, layer));
  return parts;
}

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

LayerAdapterParts AdapterPartsOf(const ModelSpec& spec, const LayerSpec& layer) {
  LayerAdapterParts parts;
  const auto set = [&](AdapterSite site, std::initializer_list<int64_t> rows) {
    parts.sites[static_cast<size_t>(site)] = StackedParts(rows);
  };
  const AttentionSpec& attention = layer.attention;
  const MlaSpec& mla = attention.mla;
  if (mla.kv_rank > 0) {
    if (mla.q_rank > 0) set(AdapterSite::kQueryA, {mla.q_rank});
    set(AdapterSite::kQueryB, {int64_t{attention.n_heads} * mla.q_dim()});
    set(AdapterSite::kKvA, {mla.rope_dim + mla.kv_rank});
  } else if (attention.n_heads > 0) {
    const int64_t kv_rows = int64_t{attention.n_kv_heads} * attention.head_dim;
    set(AdapterSite::kQkv, {int64_t{attention.n_heads} * attention.head_dim, kv_rows, kv_rows});
  }
  if (attention.n_heads > 0 || attention.linear) set(AdapterSite::kOut, {spec.hidden});
  if (layer.mlp.inter > 0) {
    const int64_t inter = layer.mlp.inter;
    if (layer.mlp.gated) {
      set(AdapterSite::kUp, {inter, inter});
    } else {
      set(AdapterSite::kUp, {inter});
    }
    set(AdapterSite::kDown, {spec.hidden});
    if (layer.mlp.row_gate) set(AdapterSite::kRowGate, {1});
  }
  if (layer.moe.n_experts > 0) set(AdapterSite::kRouter, {layer.moe.n_experts});
  return parts;
}

int64_t AdapterTables::Bytes(const ModelSpec& spec, int32_t slots) {
  const std::vector<LayerAdapterParts> parts = PartsOfLayers(spec);
  return int64_t{slots} * PartsPerSlot(parts) *
         static_cast<int64_t>(sizeof(kernels::AdapterFactors));
}

absl::StatusOr<std::unique_ptr<AdapterTables>> AdapterTables::Create(kernels::Device& device,
                                                                     const ModelSpec& spec,
                                                                     int32_t slots,
                                                                     int32_t max_rank,
                                                                     kernels::DType dtype) {
  HEDDLE_CHECK(slots > 0 && max_rank > 0 && max_rank <= kernels::kMaxAdapterRank,
               "adapters: no slots, or a rank that kernels do not take");
  std::unique_ptr<AdapterTables> tables(new AdapterTables);
  tables->parts_ = PartsOfLayers(spec);
  tables->num_slots_ = slots;
  tables->slot_stride_ = PartsPerSlot(tables->parts_);
  tables->slot_row_.resize(static_cast<size_t>(tables->slot_stride_));
  HEDDLE_ASSIGN_OR_RETURN(tables->factors_,
                          device.Allocate(std::max<int64_t>(1, Bytes(spec, slots))));
  const auto* factors = static_cast<const kernels::AdapterFactors*>(tables->factors_->data());
  int32_t first = 0;
  for (const LayerAdapterParts& layer : tables->parts_) {
    for (const std::vector<kernels::AdapterPart>& site : layer.sites) {
      tables->entries_.push_back({.matrix = {.dtype = dtype,
                                             .parts = site,
                                             .factors = factors + first,
                                             .n_slots = slots,
                                             .slot_stride = tables->slot_stride_,
                                             .max_rank = max_rank},
                                  .first = first});
      first += static_cast<int32_t>(site.size());
    }
  }
  return tables;
}

const kernels::AdapterMatrix* AdapterTables::matrix(int32_t layer, AdapterSite site) const {
  const Entry& entry = entries_[EntryOf(layer, site)];
  return entry.matrix.parts.empty() ? nullptr : &entry.matrix;
}

absl::Status AdapterTables::Bind(kernels::Device& device, int32_t slot, float scale,
                                 const AdapterImage& image, std::span<std::byte* const> pages) {
  HEDDLE_CHECK(slot >= 0 && slot < num_slots_, "an adapter is bound to a slot that does not exist");
  HEDDLE_CHECK(static_cast<int32_t>(pages.size()) == image.num_pages,
               "an adapter is bound with some of its pages only");
  const auto address = [&](const ImagePlace& place) {
    return reinterpret_cast<const void* const*>(pages[static_cast<size_t>(place.page)] +
                                                place.offset);
  };
  std::fill(slot_row_.begin(), slot_row_.end(), kernels::AdapterFactors{});
  for (const ImageFactors& factors : image.factors) {
    const Entry& entry = entries_[EntryOf(factors.layer, factors.site)];
    HEDDLE_CHECK(factors.part < static_cast<int32_t>(entry.matrix.parts.size()) &&
                     factors.rank <= entry.matrix.max_rank && image.dtype == entry.matrix.dtype,
                 "an adapter's image was made for another model");
    const int32_t at = entry.first + factors.part;
    slot_row_[static_cast<size_t>(at)] = {.a = address(factors.a_table),
                                          .b = address(factors.b_table),
                                          .rank = factors.rank,
                                          .block_rows = factors.block_rows,
                                          .scale = factors.scale * scale};
  }
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
    HEDDLE_RETURN_IF_ERROR(
        device.UploadBeside(pages[static_cast<size_t>(begin.page)] + begin.offset, pointers_.data(),
                            end - begin.offset));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
