// The branches that there are, and have been, as /metrics shows them. Plain data.
#pragma once

#include <cstdint>

namespace heddle::server {

struct BranchFigures {
  int64_t trees = 0, branches = 0, running = 0, tokens = 0;  // now
  int64_t forked = 0, joined = 0, dropped = 0, expired = 0;  // so far
  int64_t workers = 0;                                       // of those that were forked
};

}  // namespace heddle::server
