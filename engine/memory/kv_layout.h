// Decides which layers share a page of the KV cache: those of one group, whose rows see equally far
// (engine/step.h). A page has a number of places, each for one layer of its group. All pages have
// the same places, whatever the group, so that they have one size and come from one pool.
//
// Layers with state in place of keys and values (KvLayerShape::is_state) are in groups of their
// own, behind the others. A page of theirs has no keys: their places begin where a page begins, as
// the others do (docs/decisions/0084).
//
// Pure arithmetic. The scheduler only needs the windows of the groups, and how many have state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/page_rule.h"
#include "kernels/dtype.h"

namespace heddle::engine {

// Shape of one layer's cache.
struct KvLayerShape {
  int32_t n_kv_heads = 0;  // 0: the layer has no attention
  int32_t head_dim = 0;
  bool keys_alone = false;  // they are the values too: see kernels::KvCacheView
  // A drafter's: the head keeps all of it and the other ranks nothing, so that it shares no place
  // with a layer that ranks cut.
  bool is_of_head = false;
  // Elements of a vector of keys of another kind per position, those of an indexer, which has a
  // block of its own behind the others; 0: there is none.
  int32_t index_dim = 0;
  // State: the inputs of a short convolution, of which rows see a few positions. They are F32
  // whatever the cache's type, one head of keys alone.
  bool is_state = false;
  // Such state is not a row for each position: a page has one, that of a recurrence behind the last
  // of its positions (kernels/recurrence.h).
  bool is_snapshot = false;

  int32_t n_arrays() const { return n_kv_heads == 0 ? 0 : keys_alone ? 1 : 2; }
  // Bytes of one position, scales included, and of those of a page.
  int64_t RowBytes(kernels::DType dtype) const;
  int64_t PageBytes(kernels::DType dtype, int32_t page_tokens) const {
    return RowBytes(dtype) * (is_snapshot ? 1 : page_tokens);
  }
  bool operator==(const KvLayerShape&) const = default;
};

struct KvLayer {
  KvLayerShape shape;
  int32_t window = 0;  // positions that a row sees; 0: all
};

// Bytes of one position over all layers with keys, K and V, scales included.
int64_t KvBytesPerToken(std::span<const KvLayer> layers, kernels::DType dtype);

struct KvLayout {
  static constexpr int32_t kNowhere = -1;
  struct Place {
    int32_t group = 0;
    int32_t place = kNowhere;  // index in the page; none without attention
  };

  std::vector<int32_t> windows = {0};  // [groups]; the furthest first, then state; 0: all
  int32_t n_state_groups = 0;          // of these, the last
  std::vector<KvLayerShape> places;    // in each page
  std::vector<Place> layers;           // [n_layers]

  int32_t n_groups() const { return static_cast<int32_t>(windows.size()); }
  // Groups that have keys and values; 1 if there is none.
  int32_t n_kv_groups() const { return std::max(1, n_groups() - n_state_groups); }
  int64_t PageBytes(kernels::DType dtype, int32_t page_tokens) const;
};

// Each group costs a list of spans in every sequence and step.
inline constexpr int32_t kMaxKvGroups = 8;

// The same places for layers of other shapes: a rank's heads in pages that all ranks have alike.
// REQUIRES: layers that share a place in `layout` have the same shape in `layers`, or none: those
// of a pipeline's other stages.
KvLayout WithShapes(KvLayout layout, std::span<const KvLayer> layers);

// Puts all layers in one group, which sees as far as any of them. REQUIRES: none has state.
KvLayout OneKvGroup(std::span<const KvLayer> layers);

// The layout in which a sequence of `tokens` takes the least memory. Layers of one window form one
// or several groups, so that all groups have about as many layers; each group beyond the first has
// to save two percent. If no other layout is better, all layers without state are in one group.
// `one_kv_group`: they are in any case.
KvLayout PlanKvLayout(std::span<const KvLayer> layers, const PageRule& rule, int64_t tokens,
                      kernels::DType dtype, bool one_kv_group = false);

}  // namespace heddle::engine
