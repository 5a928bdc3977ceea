// Rows of the family table for the decoders of Qwen's models that read images. For text alone all
// sections of their RoPE have the same position, so that it is that of the models without images.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// The rows that these are variants of.
struct VisionBases {
  Family qwen2;
  Family qwen3;
  Family qwen3_moe;
};
std::vector<Family> VisionRows(const VisionBases& bases);

}  // namespace heddle::engine
