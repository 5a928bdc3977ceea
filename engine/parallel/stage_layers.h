// How many layers each stage of a pipeline gets: so that all take equally long, by what a decoding
// step reads, on machines that may differ in speed and in memory.
//
// Pure arithmetic. Source: the partition of a line into runs of least greatest sum (Linear
// Partition, Skiena 1998), with a speed and a room for each run.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/model/model_spec.h"

namespace heddle::engine {

// The means of a stage's machines.
struct StageMeans {
  double speed = 1;                                       // in proportion to other stages'
  double room = std::numeric_limits<double>::infinity();  // bytes, for its layers
};

// The bytes of layers: their weights, and keys and values of a usual number of tokens.
struct LayerSizes {
  std::vector<double> layers;  // [layers] bytes; empty: nobody asks
  double first = 0;            // of embedding and output head, in stage 0
};

// Cuts layers of these costs into a run for each stage whose greatest sum, divided by the stage's
// speed, is least, `first` being added to that of the first; returns their lengths. Runs fit into
// their stages' rooms if that can be; else the one that lacks most lacks as little as can be, and
// among such divisions it is the fastest. Some are empty if there are too few layers.
// O(stages * layers^2).
std::vector<int32_t> DivideLayers(std::span<const double> costs, double first,
                                  std::span<const StageMeans> stages, const LayerSizes& sizes);

// The same for a model's layers: by the weights that a decoding step reads, of a mixture's experts
// those that a few streams choose, and a part of the output head. Layers that share an input with
// the one before them go with it.
std::vector<int32_t> StageLayers(const ModelSpec& spec, std::span<const StageMeans> stages,
                                 const LayerSizes& sizes);

}  // namespace heddle::engine
