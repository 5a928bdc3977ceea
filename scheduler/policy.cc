#include "scheduler/policy.h"

namespace heddle::scheduler {

OrderKey FcfsPolicy::Key(const GenerationRequest&, uint64_t arrival, int64_t) {
  return {.rank = 0, .arrival = arrival};
}

}  // namespace heddle::scheduler
