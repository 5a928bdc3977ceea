// Kernels for the tests of the runtime on the PTX machine, compiled by nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace heddle::ptx {

// Reports of kernels, in the order in which they ran.
struct Log {
  int32_t count;
  int32_t entries[31];
};

struct AppendParams {
  Log* log;
  int32_t value;
};

const void* AppendKernel();       // AppendParams; one block of one thread
const void* AppendEarlyKernel();  // the same, waits for what it depends on
const void* NarrowKernel();       // Log*; made for 64 threads: appends how many there are
const void* SharedKernel();       // Log*, int32_t: appends the last of so many words of memory
                                  // beside 1 KiB of static ones
const void* StrayKernel();        // Log*: stores behind the last entry

// kernel<<<1, 1, 0, stream>>> with parameters that lie at multiples of their own sizes: appends a,
// b, the low half of c, and 8 d, then the two words of a variable that begins as {70, 71}, which it
// counts up.
void LaunchMixed(Log* log, cudaStream_t stream, int8_t a, int32_t b, int64_t c, double d);

}  // namespace heddle::ptx
