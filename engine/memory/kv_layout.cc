#include "engine/memory/kv_layout.h"

#include <algorithm>
#include <limits>

#include "kernels/kv_cache.h"

namespace heddle::engine {
namespace {

// Share of the memory that each further group must save to pay for its lists of spans.
constexpr double kGroupCost = 0.02;

// The layers with the same window, counted by shape.
struct Kind {
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
      return !SeesFurther(kind.window, layer.window);
    });
    if (at == census.kinds.end() || at->window != layer.window) {
      at = census.kinds.insert(at, {layer.window, std::vector<int32_t>(census.shapes.size())});
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
  Search(const Census& census, const PageRule& rule, int64_t tokens, kernels::DType dtype)
      : census_(census), rule_(rule), tokens_(tokens), dtype_(dtype) {}

  // The best number of groups of each kind.
  std::vector<int32_t> Run() {
    Extend(kMaxKvGroups);
    return best_;
  }

  // Memory of one sequence with this many groups of each kind, weighted by the cost of their lists.
  double Cost(std::span<const int32_t> groups) const {
    std::vector<int32_t> windows;
    for (size_t k = 0; k < groups.size(); ++k) {
      windows.insert(windows.end(), static_cast<size_t>(groups[k]), census_.kinds[k].window);
    }
    const std::vector<int32_t> places = PlacesOf(census_, groups);
    int64_t row_bytes = 0;
    for (size_t s = 0; s < places.size(); ++s) {
      row_bytes += places[s] * census_.shapes[s].RowBytes(dtype_);
    }
    return Weighed(row_bytes, windows);
  }

  double Weighed(int64_t row_bytes, std::span<const int32_t> windows) const {
    return static_cast<double>(row_bytes * rule_.MostPages(tokens_, windows)) *
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
    for (int32_t count = 1; count <= left; ++count) {
      groups_.push_back(count);
      Extend(left - count);
      groups_.pop_back();
    }
  }

  const Census& census_;
  const PageRule& rule_;
  const int64_t tokens_;
  const kernels::DType dtype_;
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
    while (census.kinds[k].window != layer.window) ++k;
    const int32_t nth = placed[k][s]++;
    layout.layers.push_back({first_group[k] + nth / places[s], first_place[s] + nth % places[s]});
  }
  return layout;
}

}  // namespace

int64_t KvLayerShape::RowBytes(kernels::DType dtype) const {
  return int64_t{n_arrays()} * n_kv_heads * kernels::KvRowBytes(dtype, head_dim);
}

int64_t KvBytesPerToken(std::span<const KvLayer> layers, kernels::DType dtype) {
  int64_t bytes = 0;
  for (const KvLayer& layer : layers) bytes += layer.shape.RowBytes(dtype);
  return bytes;
}

int64_t KvLayout::RowBytes(kernels::DType dtype) const {
  int64_t bytes = 0;
  for (const KvLayerShape& place : places) bytes += place.RowBytes(dtype);
  return bytes;
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

KvLayout PlanKvLayout(std::span<const KvLayer> layers, const PageRule& rule, int64_t tokens,
                      kernels::DType dtype) {
  KvLayout one = OneKvGroup(layers);
  const Census census = Count(layers);
  if (census.kinds.size() < 2 || census.kinds.size() > static_cast<size_t>(kMaxKvGroups)) {
    return one;
  }
  Search search(census, rule, tokens, dtype);
  const std::vector<int32_t> groups = search.Run();
  if (search.Weighed(one.RowBytes(dtype), one.windows) <= search.Cost(groups)) return one;
  return Build(layers, census, groups);
}

}  // namespace heddle::engine
