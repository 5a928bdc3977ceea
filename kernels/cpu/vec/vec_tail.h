// Rows whose length is no multiple of the lanes.
// REQUIRES: one of the vec_*.h headers included before this one.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

inline int LanesAt(int64_t i, int64_t n) {
  return n - i < kLanes ? static_cast<int>(n - i) : kLanes;
}
inline Vec LoadUpTo(const float* p, int n) { return n == kLanes ? Load(p) : LoadN(p, n); }
inline void StoreUpTo(float* p, Vec v, int n) {
  if (n == kLanes) {
    Store(p, v);
  } else {
    StoreN(p, v, n);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
