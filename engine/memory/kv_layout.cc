#include "engine/memory/kv_layout.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "kernels/kv_cache.h"

namespace heddle::engine {
namespace {

// Share of the memory that each further group must save to pay for its lists of spans.
constexpr double kGroupCost = 0.02;

// The layers with the same window, counted by shape. Layers with state are of other kinds than
// those with keys.
struct Kind {
  bool is_state = false;
  int32_t window = 0;
  std::vector<int32_t> layers_of_shape;  // [shapes]
};

// The input of the search: kinds, the furthest-seeing first, and shapes in order of appearance.
struct Census {
  std::vector<KvLayerShape> shapes;
  std::vector<Kind> kinds;
};

bool SeesFurther(int32_t window, int32_t other) {
  return window != other && other != 0 && (window == 0 || window > other);
}

// Whether layers of the kind come before the layer's in the list of groups, or are of its kind.
bool IsBefore(const Kind& kind, const KvLayer& layer) {
  if (kind.is_state != layer.shape.is_state) return layer.shape.is_state;
  return !SeesFurther(layer.window, kind.window);
}

bool IsOf(const Kind& kind, const KvLayer& layer) {
  return kind.is_state == layer.shape.is_state && kind.window == layer.window;
}

// Bytes of a page whose places have these shapes, `places` of each.
int64_t BytesOfPage(std::span<const KvLayerShape> shapes, std::span<const int32_t> places,
                    kernels::DType dtype, int32_t page_tokens) {
  int64_t of_keys = 0;
  int64_t of_state = 0;
  for (size_t s = 0; s < shapes.size(); ++s) {
    const int64_t bytes = places[s] * shapes[s].PageBytes(dtype, page_tokens);
    (shapes[s].is_state ? of_state : of_keys) += bytes;
  }
  constexpr int64_t kAlignment = sizeof(float);
  if (of_state > 0) of_keys = (of_keys + kAlignment - 1) / kAlignment * kAlignment;
  return std::max(of_keys, of_state);
}

size_t ShapeOf(const Census& census, const KvLayerShape& shape) {
  const auto at = std::find(census.shapes.begin(), census.shapes.end(), shape);
  return static_cast<size_t>(at - census.shapes.begin());
}

Census Count(std::span<const KvLayer> layers) {
  Census census;
  for (const KvLayer& layer : layers) {
    if (layer.shape.n_arrays() == 0) continue;
    if (ShapeOf(census, layer.shape) == census.shapes.size()) census.shapes.push_back(layer.shape);
  }
  for (const KvLayer& layer : layers) {
    if (layer.shape.n_arrays() == 0) continue;
    auto at = std::find_if(census.kinds.begin(), census.kinds.end(), [&](const Kind& kind) {
      return IsOf(kind, layer) || !IsBefore(kind, layer);
    });
    if (at == census.kinds.end() || !IsOf(*at, layer)) {
      at = census.kinds.insert(
          at, {layer.shape.is_state, layer.window, std::vector<int32_t>(census.shapes.size())});
    }
    ++at->layers_of_shape[ShapeOf(census, layer.shape)];
  }
  return census;
}

// Places of each shape that a page needs so that every kind fits into its number of groups.
std::vector<int32_t> PlacesOf(const Census& census, std::span<const int32_t> groups) {
  std::vector<int32_t> places(census.shapes.size(), 0);
  for (size_t k = 0; k < groups.size(); ++k) {
    for (size_t s = 0; s < places.size(); ++s) {
      const int32_t layers = census.kinds[k].layers_of_shape[s];
      places[s] = std::max(places[s], (layers + groups[k] - 1) / groups[k]);
    }
  }
  return places;
}

// Tries all numbers of groups per kind; there are few.
class Search {
 public:
  // `one_each`: kinds with keys have one group each.
  Search(const Census& census, const PageRule& rule, int64_t tokens, kernels::DType dtype,
         bool one_each)
      : census_(census), rule_(rule), tokens_(tokens), dtype_(dtype), one_each_(one_each) {}

  // The best number of groups of each kind.
  std::vector<int32_t> Run() {
    Extend(kMaxKvGroups);
    return best_;
  }

  // Memory of one sequence with this many groups of each kind, weighted by the cost of their lists.
  double Cost(std::span<const int32_t> groups) const {
    std::vector<int32_t> windows;
    PageRule rule = rule_;
    for (size_t k = 0; k < groups.size(); ++k) {
      windows.insert(windows.end(), static_cast<size_t>(groups[k]), census_.kinds[k].window);
      if (census_.kinds[k].is_state) rule.state_groups += groups[k];
    }
    const std::vector<int32_t> places = PlacesOf(census_, groups);
    return Weighed(BytesOfPage(census_.shapes, places, dtype_, rule.page_tokens), windows, rule);
  }

  double Weighed(int64_t page_bytes, std::span<const int32_t> windows, const PageRule& rule) const {
    return static_cast<double>(page_bytes * rule.MostPages(tokens_, windows)) *
           (1 + kGroupCost * static_cast<double>(windows.size()));
  }

 private:
  void Extend(int32_t left) {
    if (groups_.size() == census_.kinds.size()) {
      const double cost = Cost(groups_);
      if (cost < best_cost_) {
        best_cost_ = cost;
        best_ = groups_;
      }
      return;
    }
    const bool is_one = one_each_ && !census_.kinds[groups_.size()].is_state;
    for (int32_t count = 1; count <= (is_one ? std::min(1, left) : left); ++count) {
      groups_.push_back(count);
      Extend(left - count);
      groups_.pop_back();
    }
  }

  const Census& census_;
  const PageRule& rule_;
  const int64_t tokens_;
  const kernels::DType dtype_;
  const bool one_each_;
  std::vector<int32_t> groups_, best_;
  double best_cost_ = std::numeric_limits<double>::infinity();
};

KvLayout Build(std::span<const KvLayer> layers, const Census& census,
               std::span<const int32_t> groups) {
  const std::vector<int32_t> places = PlacesOf(census, groups);
  KvLayout layout;
  layout.windows.clear();
  std::vector<int32_t> first_group;                    // [kinds]
  std::vector<int32_t> first_place(places.size(), 0);  // [shapes]
  for (size_t k = 0; k < groups.size(); ++k) {
    first_group.push_back(layout.n_groups());
    layout.windows.insert(layout.windows.end(), static_cast<size_t>(groups[k]),
                          census.kinds[k].window);
    if (census.kinds[k].is_state) layout.n_state_groups += groups[k];
  }
  for (size_t s = 0; s < places.size(); ++s) {
    first_place[s] = static_cast<int32_t>(layout.places.size());
    layout.places.insert(layout.places.end(), static_cast<size_t>(places[s]), census.shapes[s]);
  }
  std::vector<std::vector<int32_t>> placed(groups.size(), std::vector<int32_t>(places.size(), 0));
  for (const KvLayer& layer : layers) {
    if (layer.shape.n_arrays() == 0) {
      layout.layers.push_back({});
      continue;
    }
    const size_t s = ShapeOf(census, layer.shape);
    size_t k = 0;
    while (!IsOf(census.kinds[k], layer)) ++k;
    const int32_t nth = placed[k][s]++;
    layout.layers.push_back({first_group[k] + nth / places[s], first_place[s] + nth % places[s]});
  }
  return layout;
}

}  // namespace

int64_t KvLayerShape::RowBytes(kernels::DType dtype) const {
  const int64_t index = index_dim > 0 ? kernels::KvRowBytes(dtype, index_dim) : 0;
  return index + int64_t{n_arrays()} * n_kv_heads *
                     kernels::KvRowBytes(is_state ? kernels::DType::kF32 : dtype, head_dim);
}

int64_t KvBytesPerToken(std::span<const KvLayer> layers, kernels::DType dtype) {
  int64_t bytes = 0;
  for (const KvLayer& layer : layers) {
    if (!layer.shape.is_state) bytes += layer.shape.RowBytes(dtype);
  }
  return bytes;
}

int64_t KvLayout::PageBytes(kernels::DType dtype, int32_t page_tokens) const {
  return BytesOfPage(places, std::vector<int32_t>(places.size(), 1), dtype, page_tokens);
}

KvLayout WithShapes(KvLayout layout, std::span<const KvLayer> layers) {
  for (KvLayerShape& place : layout.places) place = {};
  for (size_t i = 0; i < layers.size(); ++i) {
    const int32_t place = layout.layers[i].place;
    if (place == KvLayout::kNowhere || layers[i].shape.n_arrays() == 0) continue;
    layout.places[static_cast<size_t>(place)] = layers[i].shape;
  }
  return layout;
}

KvLayout OneKvGroup(std::span<const KvLayer> layers) {
  KvLayout layout;
  int32_t furthest = -1;  // none yet
  for (const KvLayer& layer : layers) {
    KvLayout::Place at;
    if (layer.shape.n_arrays() > 0) {
      at.place = static_cast<int32_t>(layout.places.size());
      layout.places.push_back(layer.shape);
      if (furthest < 0 || SeesFurther(layer.window, furthest)) furthest = layer.window;
    }
    layout.layers.push_back(at);
  }
  layout.windows = {std::max(0, furthest)};
  return layout;
}

KvLayout PlanKvLayout(std::span<const KvLayer> given, const PageRule& rule, int64_t tokens,
                      kernels::DType dtype, bool one_kv_group) {
  const auto has_state = [](const KvLayer& layer) { return layer.shape.is_state; };
  const bool any_state = std::any_of(given.begin(), given.end(), has_state);
  if (one_kv_group && !any_state) return OneKvGroup(given);
  std::vector<KvLayer> layers(given.begin(), given.end());
  Census census = Count(layers);
  // Beside state, layers that see less far than others are with these if they must be or if there
  // are too many kinds.
  if (any_state && (one_kv_group || census.kinds.size() > static_cast<size_t>(kMaxKvGroups))) {
    std::vector<KvLayer> with_keys;
    std::copy_if(layers.begin(), layers.end(), std::back_inserter(with_keys),
                 [&](const KvLayer& layer) { return !has_state(layer); });
    const int32_t furthest = OneKvGroup(with_keys).windows.front();
    for (KvLayer& layer : layers) {
      if (!has_state(layer)) layer.window = furthest;
    }
    census = Count(layers);
  }
  const size_t kinds = census.kinds.size();
  if (!any_state && (kinds < 2 || kinds > static_cast<size_t>(kMaxKvGroups))) {
    return OneKvGroup(layers);
  }
  HEDDLE_CHECK(kinds <= static_cast<size_t>(kMaxKvGroups), "states of too many kinds");
  Search search(census, rule, tokens, dtype, one_kv_group);
  const std::vector<int32_t> groups = search.Run();
  if (!any_state) {
    KvLayout one = OneKvGroup(layers);
    const double cost = search.Weighed(one.PageBytes(dtype, rule.page_tokens), one.windows, rule);
    if (cost <= search.Cost(groups)) return one;
  }
  return Build(layers, census, groups);
}

}  // namespace heddle::engine
