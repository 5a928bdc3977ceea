#include "scheduler/token_budget.h"

#include <algorithm>

namespace heddle::scheduler {

void ShareBudget(std::span<const int32_t> wants, int32_t budget, std::span<int32_t> shares) {
  int32_t left = std::max(budget, 0);
  for (size_t i = 0; i < wants.size(); ++i) {
    int32_t cap = std::min(left, std::max((left + 1) / 2, kMinChunkTokens));
    shares[i] = std::min(wants[i], cap);
    left -= shares[i];
  }
  for (size_t i = 0; i < wants.size() && left > 0; ++i) {
    int32_t more = std::min(left, wants[i] - shares[i]);
    shares[i] += more;
    left -= more;
  }
}

}  // namespace heddle::scheduler
