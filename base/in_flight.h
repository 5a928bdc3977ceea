// A ring of things that have begun and not ended, the oldest first, such as steps between plan and
// result. Its places are made once and reused in turn, so that they keep their memory.
//
// Use: fill in next(), then Push; work on oldest(), then Pop.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace heddle::base {

template <typename T>
class InFlight {
 public:
  // At most `depth` >= 1 are in flight. There is one place more, so that next() exists when the
  // ring is full.
  explicit InFlight(int depth) : places_(static_cast<size_t>(depth) + 1) {
    HEDDLE_CHECK(depth >= 1, "a ring needs room for one");
  }

  int depth() const { return static_cast<int>(places_.size()) - 1; }
  int size() const { return static_cast<int>(size_); }
  bool empty() const { return size_ == 0; }
  bool full() const { return size() == depth(); }

  // The place that Push takes. It still holds its last content.
  T& next() { return At(size_); }
  // REQUIRES: !full().
  void Push() {
    HEDDLE_CHECK(!full(), "more is begun than may be in flight");
    ++size_;
  }

  // The i-th from the oldest (0) to the newest (size() - 1). REQUIRES: 0 <= i < size().
  T& operator[](int i) { return At(static_cast<size_t>(i)); }
  const T& operator[](int i) const { return At(static_cast<size_t>(i)); }
  T& oldest() { return At(0); }
  const T& oldest() const { return At(0); }
  T& newest() { return At(size_ - 1); }
  const T& newest() const { return At(size_ - 1); }

  // Forgets the oldest; its place is reused later. REQUIRES: !empty().
  void Pop() {
    HEDDLE_CHECK(!empty(), "nothing is in flight");
    first_ = (first_ + 1) % places_.size();
    --size_;
  }
  void Clear() { size_ = 0; }

 private:
  T& At(size_t i) { return places_[(first_ + i) % places_.size()]; }
  const T& At(size_t i) const { return places_[(first_ + i) % places_.size()]; }

  std::vector<T> places_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace heddle::base
