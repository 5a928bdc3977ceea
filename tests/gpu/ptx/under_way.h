// What a block's threads have asked for and has not happened yet. See machine.h on asynchrony.
#pragma once

#include "tests/gpu/ptx/machine.h"

namespace heddle::ptx {

struct CopiesUnderWay {};
struct ProductsUnderWay {};
struct BulkCopies {};

}  // namespace heddle::ptx
