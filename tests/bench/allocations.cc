#include "tests/bench/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

void* operator new(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace heddle::bench {

int64_t NumAllocations() { return num_allocations.load(std::memory_order_relaxed); }

}  // namespace heddle::bench
