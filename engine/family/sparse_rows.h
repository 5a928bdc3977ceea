// Rows of the family table for latent attention over positions that an indexer chooses
// (DeepSeek-V3.2, GLM-5). Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <span>
#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `rows`: those of the table so far, of which these are variants.
std::vector<Family> SparseRows(std::span<const Family> rows);

}  // namespace heddle::engine
