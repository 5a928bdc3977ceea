#include "engine/parallel/shard.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/parallel/stage_layers.h"
#include "engine/parallel/sum_ranges.h"

namespace heddle::engine {
namespace {

// Rows of a panel of the CPU's kernels (kernel_table.h): a panel that two ranks share is computed
// by both.
constexpr int64_t kTile = 32;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whole tiles, unless ranks would stay without a share.
int64_t UnitOf(int64_t total, int64_t block, int32_t world) {
  const int64_t unit = std::lcm(block, kTile);
  return CeilDivide(total, unit) >= world ? unit : block;
}

// Query heads whose outputs are whole blocks of the projection behind them.
int64_t HeadsOfBlock(int64_t block, int64_t head_dim) { return block / std::gcd(block, head_dim); }

// The number of query heads that one piece of a group of `group` heads has when groups are divided
// among ranks: the largest that gives each rank a piece, or else the smallest. 0: a group cannot be
// divided.
int64_t PieceOfGroup(int64_t n_heads, int64_t group, int64_t heads_of_block, int32_t world) {
  int64_t smallest = 0;
  for (int64_t piece = group - 1; piece >= 1; --piece) {
    if (group % piece != 0 || piece % heads_of_block != 0) continue;
    if (n_heads / piece >= world) return piece;
    smallest = piece;
  }
  return smallest;
}

// The KV heads for pieces of `piece` query heads.
std::vector<int32_t> KvHeadsOf(Range heads, int64_t piece, int64_t group) {
  std::vector<int32_t> of_pieces;
  for (int64_t h = heads.first; h < heads.end(); h += piece) {
    of_pieces.push_back(static_cast<int32_t>(h / group));
  }
  // Each KV head once, if all have equally many pieces.
  std::vector<int32_t> once = of_pieces;
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const bool even = !once.empty() && std::all_of(once.begin(), once.end(), [&](int32_t kv) {
    const auto pieces = std::count(of_pieces.begin(), of_pieces.end(), kv);
    return pieces * static_cast<int64_t>(once.size()) == static_cast<int64_t>(of_pieces.size());
  });
  return even ? once : of_pieces;
}

// Shares out the inputs of cut products among the ranks of a group.
class InputDivider {
 public:
  // `in_ranges`: of sums (sum_ranges.h).
  InputDivider(std::span<const double> weights, bool in_ranges)
      : weights_(weights), in_ranges_(in_ranges) {}

  bool in_ranges() const { return in_ranges_; }
  size_t world() const { return weights_.size(); }
  // Whole tiles if there are enough, of so many columns for each input.
  Division Features(int64_t total, int64_t block) const {
    return Units(total, UnitOf(total, block, in_ranges_ ? kSumRanges : n_ranks()));
  }
  Division Units(int64_t total, int64_t unit) const {
    if (in_ranges_) return DivideRanges(SumRanges(total, unit), world());
    return {Divide(total, unit, weights_), std::vector<std::vector<int64_t>>(world())};
  }
  int32_t n_ranks() const { return static_cast<int32_t>(weights_.size()); }

 private:
  const std::span<const double> weights_;
  const bool in_ranges_;
};

void ShareOut(const Division& division, Range HeadShare::*member, std::vector<HeadShare>* shares) {
  for (size_t r = 0; r < shares->size(); ++r) {
    (*shares)[r].*member = division.ranks[r];
    (*shares)[r].sum_borders = division.sum_borders[r];
  }
}

// How query heads are shared out, and in pieces of how many a rank's heads read their KV heads.
struct HeadDivision {
  Division heads;
  int64_t piece;
};

HeadDivision DivideQueryHeads(int64_t n_heads, const HeadUnits& units,
                              const InputDivider& divider) {
  if (divider.in_ranges()) {
    return {DivideRanges(SumRangesOfHeads(n_heads, units), divider.world()), units.group};
  }
  const int64_t unit = std::lcm(units.group, units.block);
  if (units.may_cut && CeilDivide(n_heads, unit) < divider.n_ranks()) {
    const int64_t part = PieceOfGroup(n_heads, units.group, units.block, divider.n_ranks());
    if (part > 0) return {divider.Units(n_heads, part), part};
  }
  return {divider.Units(n_heads, unit), units.group};
}

std::vector<HeadShare> DivideHeads(const AttentionSpec& attention, int64_t block,
                                   const InputDivider& divider) {
  std::vector<HeadShare> shares(divider.world());
  if (attention.conv.taps > 0) {
    ShareOut(divider.Features(attention.conv.channels, block), &HeadShare::channels, &shares);
  }
  if (const kernels::RecurrenceShape& shape = attention.recurrence.shape; shape.taps > 0) {
    const int64_t width = shape.values() / shape.n_key_heads;
    ShareOut(divider.Units(shape.n_key_heads, HeadsOfBlock(block, width)), &HeadShare::channels,
             &shares);
  }
  if (attention.n_heads == 0) return shares;
  const bool is_latent = attention.mla.kv_rank > 0;
  const int64_t n_heads = attention.n_heads;
  // Layers without keys of their own are divided as if each head had some; nobody cuts them.
  const bool has_keys = attention.n_kv_heads > 0;
  const int64_t group = is_latent || !has_keys ? 1 : n_heads / attention.n_kv_heads;
  const int64_t value_dim = is_latent ? attention.mla.v_dim : attention.head_dim;
  // A norm over the heads of all ranks needs each of them once.
  const bool may_replicate = attention.qk_norm != QkNorm::kFullWidth;
  const HeadUnits units = {group, HeadsOfBlock(block, value_dim), may_replicate};
  const HeadDivision division = DivideQueryHeads(n_heads, units, divider);
  ShareOut(division.heads, &HeadShare::heads, &shares);
  for (HeadShare& share : shares) {
    if (share.heads.count == 0) continue;
    if (is_latent) {
      share.kv_heads = {0};
    } else if (has_keys) {
      // Fewer heads than a piece are of one group.
      const int64_t piece = std::min(division.piece, share.heads.count);
      share.kv_heads = KvHeadsOf(share.heads, piece, group);
    }
  }
  return shares;
}

// [ranges + 1]
std::vector<int32_t> BordersOf(std::span<const Share> shares, auto range_of) {
  std::vector<int32_t> borders = {0};
  for (const Share& share : shares) {
    borders.push_back(static_cast<int32_t>(range_of(share).end()));
  }
  return borders;
}

LayerSpec SpecOfLayer(const LayerSpec& layer, std::span<const Share> shares, int32_t rank,
                      size_t index) {
  LayerSpec own = layer;
  const LayerShare& share = shares[static_cast<size_t>(rank)].layers[index];
  if (layer.attention.n_heads > 0) {
    own.attention_is_part = true;
    own.attention.n_heads = static_cast<int32_t>(share.attention.heads.count);
    own.attention.n_kv_heads = static_cast<int32_t>(share.attention.kv_heads.size());
    if (own.attention.n_heads == 0) own.attention.mla = {};
    if (layer.attention.qk_norm == QkNorm::kFullWidth) {
      own.attention.head_borders =
          BordersOf(shares, [&](const Share& s) { return s.layers[index].attention.heads; });
      const int32_t group = layer.attention.n_heads / layer.attention.n_kv_heads;
      for (const int32_t head : own.attention.head_borders) {
        own.attention.kv_head_borders.push_back(head / group);
      }
    }
  }
  if (layer.attention.conv.taps > 0) {
    own.attention_is_part = true;
    own.attention.conv.channels = static_cast<int32_t>(share.attention.channels.count);
  }
  if (kernels::RecurrenceShape& shape = own.attention.recurrence.shape; shape.taps > 0) {
    own.attention_is_part = true;
    const int32_t group = shape.n_heads / shape.n_key_heads;
    shape.n_key_heads = static_cast<int32_t>(share.attention.channels.count);
    shape.n_heads = shape.n_key_heads * group;
  }
  own.mlp_is_part = layer.mlp.inter > 0 || layer.moe.n_experts > 0;
  own.mlp.inter = static_cast<int32_t>(share.inner.count);
  own.moe.inter = static_cast<int32_t>(share.expert_inner.count);
  own.moe.n_elsewhere = layer.moe.n_experts - static_cast<int32_t>(share.experts.count);
  own.moe.first_here = static_cast<int32_t>(share.experts.first);
  if (own.moe.inter == 0 || own.moe.n_here() == 0) own.moe = {};
  if (own.mlp.inter == 0) own.mlp.row_gate = false;
  return own;
}

// A layer of another stage: it has the place and the window of its keys and values, and nothing to
// compute.
LayerSpec LayerElsewhere(const LayerSpec& layer) {
  LayerSpec empty;
  empty.attention.window = layer.attention.window;
  empty.attention.head_dim = layer.attention.head_dim;
  empty.wiring = layer.wiring;
  return empty;
}

// The layers of each stage.
std::vector<Range> DivideStages(const ModelSpec& spec, const Layout& layout) {
  const std::vector<int32_t> counts =
      layout.stage_layers.empty()
          ? StageLayers(spec, std::vector<StageMeans>(static_cast<size_t>(layout.pp)), {})
          : layout.stage_layers;
  HEDDLE_CHECK(static_cast<int32_t>(counts.size()) == layout.pp, "a number for each stage");
  std::vector<Range> stages;
  int64_t first = 0;
  for (const int32_t count : counts) {
    stages.push_back({first, count});
    first += count;
  }
  HEDDLE_CHECK(first == spec.n_layers(), "the stages have not all layers");
  return stages;
}

}  // namespace

bool HasExperts(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& layer) { return layer.moe.n_experts > 0; });
}

std::vector<Range> Divide(int64_t total, int64_t unit, std::span<const double> weights) {
  HEDDLE_CHECK(total >= 0 && unit >= 1, "nothing that can be divided");
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  const int64_t units = CeilDivide(total, unit);
  std::vector<Range> ranges;
  double before = 0;
  int64_t first = 0;
  for (size_t r = 0; r < weights.size(); ++r) {
    before += weights[r];
    const int64_t border =
        r + 1 == weights.size()
            ? total
            : std::min<int64_t>(total, unit * std::llround(units * (before / all)));
    ranges.push_back({first, border - first});
    first = border;
  }
  return ranges;
}

std::vector<Share> DivideModel(const ModelSpec& spec, const Layout& layout,
                               const CutBlocks& blocks) {
  HEDDLE_CHECK(layout.tp >= 1 && layout.pp >= 1, "a group has one rank at least");
  const std::vector<double> weights = layout.weights.empty()
                                          ? std::vector<double>(static_cast<size_t>(layout.tp), 1.0)
                                          : layout.weights;
  HEDDLE_CHECK(static_cast<int32_t>(weights.size()) == layout.tp, "a weight for each rank");
  const bool is_even =
      std::all_of(weights.begin(), weights.end(), [&](double w) { return w == weights.front(); });
  const bool in_ranges =
      layout.invariant && is_even && kSumRanges % layout.tp == 0 && !HasExperts(spec);
  const InputDivider divider(weights, in_ranges);
  const std::vector<FeatureOrder>& orders = blocks.down_orders;
  HEDDLE_CHECK(orders.empty() || orders.size() == spec.layers.size(), "an order for each layer");
  std::vector<Share> shares;
  const std::vector<Range> stages = DivideStages(spec, layout);
  const std::vector<Range> vocab = Divide(spec.vocab, UnitOf(spec.vocab, 1, layout.tp), weights);
  for (int32_t i = 0; i < layout.world(); ++i) {
    Share& share = shares.emplace_back();
    share.rank = i % layout.tp;
    share.world = layout.tp;
    share.stage = i / layout.tp;
    share.n_stages = layout.pp;
    share.stage_layers = stages[static_cast<size_t>(share.stage)];
    if (share.stage == 0) share.vocab = vocab[static_cast<size_t>(share.rank)];
    share.layers.resize(spec.layers.size());
  }
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    const std::vector<HeadShare> heads = DivideHeads(layer.attention, blocks.out, divider);
    const Division inner = divider.Features(layer.mlp.inter, blocks.down);
    const int64_t expert_inter = layer.moe.n_experts > 0 ? layer.moe.inter : 0;
    std::vector<Range> expert_inner =
        Divide(expert_inter, UnitOf(expert_inter, blocks.expert_down, layout.tp), weights);
    std::vector<Range> experts(weights.size(), Range{0, layer.moe.n_experts});
    if (layout.expert_parallel) {
      experts = Divide(layer.moe.n_experts, 1, weights);
      std::fill(expert_inner.begin(), expert_inner.end(), Range{0, expert_inter});
    }
    for (Share& share : shares) {
      const auto r = static_cast<size_t>(share.rank);
      if (share.has_layer(static_cast<int64_t>(l))) {
        share.layers[l] = {
            heads[r],   inner.ranks[r],  inner.sum_borders[r],
            experts[r], expert_inner[r], layout.tp > 1 && !orders.empty() ? orders[l] : nullptr};
      }
    }
  }
  return shares;
}

Share WholeShare(const ModelSpec& spec) { return std::move(DivideModel(spec, {}, {}).front()); }

ModelSpec SpecOfShare(const ModelSpec& model, std::span<const Share> shares, int32_t index) {
  if (shares.size() == 1) return model;
  const Share& share = shares[static_cast<size_t>(index)];
  ModelSpec own = model;
  own.stage = share.stage;
  own.n_stages = share.n_stages;
  own.rank = share.rank;
  for (size_t first = 0; share.n_stages > 1 && first < shares.size(); first += share.world) {
    own.stage_borders.push_back(static_cast<int32_t>(shares[first].stage_layers.first));
  }
  if (share.n_stages > 1) own.stage_borders.push_back(model.n_layers());
  const auto group = shares.subspan(static_cast<size_t>(share.stage) * share.world, share.world);
  if (share.world > 1) {
    own.vocab_borders = BordersOf(group, [](const Share& one) { return one.vocab; });
  }
  for (size_t l = 0; l < own.layers.size(); ++l) {
    if (!share.has_layer(static_cast<int64_t>(l))) {
      own.layers[l] = LayerElsewhere(model.layers[l]);
    } else if (share.world > 1) {
      own.layers[l] = SpecOfLayer(model.layers[l], group, share.rank, l);
    }
  }
  return own;
}

}  // namespace heddle::engine
