// The tensors that a described model needs of its checkpoint, and their shapes.
// Shapes are in the checkpoint's order of dimensions: [out, in] of a linear layer, or [in, out]
// where NameMap::transposed_linears says so. Names that a description leaves empty demand nothing.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/family/model_description.h"

namespace heddle::engine {

struct TensorDemand {
  std::string name;
  std::vector<int64_t> shape;  // in elements, in the checkpoint's order
  std::string_view meaning;    // where the shape comes from: a name for each dimension; a literal
  bool bytes = false;          // read as bytes of a quantised format
};

// Those of all layers and of both ends. Modules in folders of their own (PooledOutput) are not
// among them; they are checked when they are read. Pure; every description has some.
std::vector<TensorDemand> DemandsOf(const ModelDescription& model);

}  // namespace heddle::engine
