// Rows of the family table for encoders: models whose rows see all of a text, and that write none.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

std::vector<Family> EncoderRows();

}  // namespace heddle::engine
