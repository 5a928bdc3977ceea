// Divides the rest of a step's token budget after the decodes among the prompts that wait for it.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::scheduler {

// The smallest share of a prompt that is cut by the budget (except the last one): below about 16
// rows a chunk costs a pass over its context and gains little.
inline constexpr int32_t kMinChunkTokens = 16;

// Writes to shares[i] how many of the wants[i] >= 1 tokens of prompt i run in this step, in order
// of urgency. Each takes at most half of the remaining budget (but at least kMinChunkTokens), so
// that a long prompt leaves room for short ones behind it; a second round gives out the rest in the
// same order. sum(shares) = min(budget, sum(wants)); shares[0] >= 1 if budget >= 1.
void ShareBudget(std::span<const int32_t> wants, int32_t budget, std::span<int32_t> shares);

}  // namespace heddle::scheduler
