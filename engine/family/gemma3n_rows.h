// Row of the family table for Gemma 3n: alternating updates, a learned residual beside attention,
// sparse gates, inputs of single layers and shared keys. Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `gemma3`: the row that it is a variant of.
std::vector<Family> Gemma3nRows(const Family& gemma3);

// The number of standard deviations below which a normally distributed value lies with probability
// `p`, to about 1e-9. REQUIRES: 0 < p < 1.
double NormalQuantile(double p);

}  // namespace heddle::engine
