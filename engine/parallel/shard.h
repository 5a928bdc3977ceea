// Which part of a model each rank of a tensor-parallel group holds and computes.
//
// Attention is cut by heads, MLPs and experts by their inner features, embedding and output head by
// the vocabulary; norms, routers, latent projections and learned positions are on every rank. A
// product whose input features are cut gives a partial sum, which AllReduce completes. Cuts lie on
// borders of quantisation blocks, head groups and kernel tiles. Shares may be uneven or empty, so
// that any number of ranks works; a group of one rank has everything, by the same code.
//
// Pure arithmetic on specs; the loader (engine/model/weights.h) reads what a share names.
// Source: Shoeybi et al. 2019 (Megatron-LM).
#pragma once

#include <cstdint>
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

  int32_t world() const { return tp; }
};

// Cuts [0, total) into consecutive ranges, one for each weight, of sizes in proportion to the
// weights. Borders are multiples of `unit`, or `total`. Some ranges are empty if there are too few
// units. REQUIRES: total >= 0, unit >= 1, weights > 0.
std::vector<Range> Divide(int64_t total, int64_t unit, std::span<const double> weights);

// The smallest pieces that inputs of products can be cut into, in columns: quantisation blocks.
struct CutBlocks {
  int64_t out = 1;          // of attention's output projections
  int64_t down = 1;         // of MLPs' second layers
  int64_t expert_down = 1;  // of experts' second layers
};

// A rank's query heads, and for each KV head that it keeps, which of the model's that is. Where
// there are more ranks than KV heads, several ranks keep the same one. A rank keeps a KV head twice
// if its query heads could not be divided evenly over its KV heads otherwise.
struct HeadShare {
  Range heads;
  std::vector<int32_t> kv_heads;

  bool operator==(const HeadShare&) const = default;
};

struct LayerShare {
  HeadShare attention;
  Range inner;         // features of the MLP
  Range expert_inner;  // features of each expert
};

struct Share {
  int32_t rank = 0;
  int32_t world = 1;
  std::vector<LayerShare> layers;
  Range vocab;

  bool is_whole() const { return world == 1; }
};

// The shares of all ranks. REQUIRES: 1 <= layout.tp, layout.weights as stated there.
std::vector<Share> DivideModel(const ModelSpec& spec, const Layout& layout,
                               const CutBlocks& blocks);

// The share of a group of one.
Share WholeShare(const ModelSpec& spec);

// The spec of the part that `shares[rank]` computes: heads and inner features are that rank's. For
// a group of one it is the model's.
ModelSpec SpecOfShare(const ModelSpec& model, std::span<const Share> shares, int32_t rank);

}  // namespace heddle::engine
