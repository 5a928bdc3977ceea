// The linear op of the CPU backend: prepares rows of x as tiles, then walks the panels of the
// weight.
#pragma once

#include <vector>

#include "kernels/cpu/adapters.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// Working memory that is kept between calls.
struct LinearScratch {
  // The rows of x in the form that a kind of segment needs: in its order of columns, then as tiles.
  struct Input {
    Scratch ordered;
    Scratch tiles;
  };
  // Outputs that a product has left as tiles for the only product that reads them
  // (LinearArgs::reader).
  struct Handed {
    const PackedWeight* reader = nullptr;  // nullptr: there are none
    const void* x = nullptr;               // the data of the tensor whose place they take
    Scratch tiles;
  };
  std::vector<Input> inputs;
  Handed handed;
  Scratch sums;      // per thread: one group of rows of one panel, or of two
  Scratch expanded;  // per thread: a range of a panel
};

// `adapters`: what is added to the products; or nullptr. args.reader must be nullptr if that
// product will have adapters.
void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            LinearScratch& scratch, const AdapterCall* adapters = nullptr);

}  // namespace heddle::kernels::cpu
