// The part of a model that each rank holds and computes: stages of a pipeline have consecutive
// layers, and the ranks of a stage, a tensor-parallel group, share each of them.
//
// Attention is cut by heads, convolutions by channels, MLPs and experts by their inner features or
// mixtures by whole experts, embedding and output head by the vocabulary; norms, routers, latent
// projections and learned positions are on every rank. Features of an MLP have no order, so that
// those whose second layer was quantised in groups from all over are cut in its order. A product
// whose input features are cut gives a partial sum, which AllReduce completes. Cuts lie on borders
// of quantisation blocks, head groups and kernel tiles. Shares may be uneven or empty, so that any
// number of ranks works; a group of one rank has everything, by the same code.
//
// Stage 0 has embedding, final norm and head beside its layers: hidden rows pass from stage to
// stage and back to it (Yang et al. 2022, EnergonAI; prima.cpp's ring).
//
// Pure arithmetic on specs; the loader (engine/model/weights.h) reads what a share names.
// Source: Shoeybi et al. 2019 (Megatron-LM).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/model_spec.h"

namespace heddle::engine {

struct Range {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

// How a model is divided.
struct Layout {
  int32_t tp = 1;               // ranks that share each layer
  std::vector<double> weights;  // [tp] > 0, sizes of the ranks' shares in proportion; empty: equal
  int32_t pp = 1;               // stages of the pipeline
  // Whether 1, 2, 4 and 8 ranks with equal shares have the same sums, bit for bit (sum_ranges.h);
  // mixtures never do.
  bool invariant = false;
  // Ranks of a stage have whole experts of a mixture, some of them each, instead of a part of each.
  bool expert_parallel = false;
  // [pp] the number of layers of each stage; empty: so that stages have equally much to do.
  std::vector<int32_t> stage_layers;

  // Ranks are numbered stage by stage.
  int32_t world() const { return tp * pp; }
};

// Cuts [0, total) into consecutive ranges, one for each weight, of sizes in proportion to the
// weights. Borders are multiples of `unit`, or `total`. Some ranges are empty if there are too few
// units. REQUIRES: total >= 0, unit >= 1, weights > 0.
std::vector<Range> Divide(int64_t total, int64_t unit, std::span<const double> weights);

// An order of a layer's features: position p is feature (*order)[p]. Null: they are in their own.
using FeatureOrder = std::shared_ptr<const std::vector<int32_t>>;

// The smallest pieces that inputs of products can be cut into, in columns: quantisation blocks.
struct CutBlocks {
  int64_t out = 1;          // of attention's output projections
  int64_t down = 1;         // of MLPs' second layers
  int64_t expert_down = 1;  // of experts' second layers
  // [layers] in which the second layers of MLPs have their columns, so that these form whole
  // blocks: where ranks share a layer, they have parts of that order. Empty: all in their own.
  std::vector<FeatureOrder> down_orders;
};

// A rank's query heads, or channels of a convolution in place of attention, or the key heads of a
// recurrence, which its heads go with; and for each KV head
// that it keeps, which of the model's that is. Where
// there are more ranks than KV heads, several ranks keep the same one. A rank keeps a KV head twice
// if its query heads could not be divided evenly over its KV heads otherwise.
struct HeadShare {
  Range heads;
  std::vector<int32_t> kv_heads;
  Range channels;
  // Where the ranges of heads, or of channels, begin whose products with the columns behind them
  // are summed apart (sum_ranges.h), counted from the first of them; and their end. Empty: in one.
  std::vector<int64_t> sum_borders;

  bool operator==(const HeadShare&) const = default;
};

struct LayerShare {
  HeadShare attention;
  Range inner;                             // features of the MLP, in `inner_order`
  std::vector<int64_t> inner_sum_borders;  // as HeadShare has them
  Range experts;                           // that the rank has
  Range expert_inner;                      // features of each of them
  FeatureOrder inner_order;
};

struct Share {
  int32_t rank = 0;   // in the group of its stage
  int32_t world = 1;  // of that group
  int32_t stage = 0;
  int32_t n_stages = 1;
  Range stage_layers;              // of the stage
  std::vector<LayerShare> layers;  // of the model; those of other stages are empty
  Range vocab;                     // empty behind stage 0

  bool has_layer(int64_t layer) const {
    return layer >= stage_layers.first && layer < stage_layers.end();
  }
};

// Whether any layer is a mixture: mixtures add up over experts before ranks do.
bool HasExperts(const ModelSpec& spec);

// The shares of all ranks, stage by stage. REQUIRES: layout.tp and layout.pp are at least 1, and
// its lists as stated there; stage_layers, if any, has all layers.
std::vector<Share> DivideModel(const ModelSpec& spec, const Layout& layout,
                               const CutBlocks& blocks);

// The share of a group of one.
Share WholeShare(const ModelSpec& spec);

// The spec of the part that `shares[index]` computes: layers, heads and inner features are that
// rank's. For a group of one it is the model's.
ModelSpec SpecOfShare(const ModelSpec& model, std::span<const Share> shares, int32_t index);

}  // namespace heddle::engine
