// What a test leaves out of every run and does every night (tests/run.sh --long, heddle_test's
// MORE): more of the same kind of case.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace heddle::test {

inline bool IsLongRun() { return std::getenv("HEDDLE_LONG_TESTS") != nullptr; }

// The first `some` of `all`; in a long run all.
template <typename T>
std::vector<T> Some(size_t some, std::initializer_list<T> all) {
  std::vector<T> chosen(all);
  if (!IsLongRun()) chosen.resize(std::min(some, chosen.size()));
  return chosen;
}

}  // namespace heddle::test
