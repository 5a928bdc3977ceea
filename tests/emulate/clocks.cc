#include "tests/emulate/clocks.h"

#include <algorithm>

namespace heddle::kernels::cuda::emulate {
namespace {

void Join(const Clock& from, Clock* to) {
  if (to->size() < from.size()) to->resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] = std::max((*to)[i], from[i]);
}

}  // namespace

void Clocks::Start(int32_t threads) {
  if (started()) return;
  clocks_.assign(threads, Clock(threads, 0));
  for (int32_t i = 0; i < threads; ++i) clocks_[i][i] = 1;
}

void Clocks::Release(int32_t thread, Clock* to) {
  Join(clocks_[thread], to);
  ++clocks_[thread][thread];
}

void Clocks::Acquire(int32_t thread, const Clock& from) { Join(from, &clocks_[thread]); }

void Clocks::Meet(int32_t first, int32_t count) {
  Clock all;
  for (int32_t i = first; i < first + count; ++i) Release(i, &all);
  for (int32_t i = first; i < first + count; ++i) Acquire(i, all);
}

}  // namespace heddle::kernels::cuda::emulate
