// Requests whose sequences share steps, so that those can run as halves.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/request.h"

namespace heddle::test {

inline std::vector<scheduler::GenerationRequest> SideBySide(int32_t vocab) {
  std::vector<scheduler::GenerationRequest> requests;
  requests.reserve(5);
  for (int32_t i = 0; i < 5; ++i) {
    scheduler::GenerationRequest request;
    request.id = scheduler::RequestId{static_cast<uint64_t>(i) + 1};
    request.prompt.reserve(16);
    for (int32_t t = 0; t < 4 + 2 * i; ++t)
      request.prompt.push_back(3 + (t * 37 + i) % (vocab - 3));
    request.sampling.temperature = 0.0f;
    request.sampling.num_logprobs = 0;
    request.max_tokens = 4;
    requests.push_back(std::move(request));
  }
  return requests;
}

// A short prompt, which gives one token after the other while a long one is read in chunks.
inline std::vector<scheduler::GenerationRequest> LongAndShort(int32_t vocab) {
  std::vector<scheduler::GenerationRequest> requests = SideBySide(vocab);
  requests.resize(2);
  requests[0].max_tokens = 3;
  requests[1].prompt.reserve(80);
  for (int32_t t = 0; requests[1].prompt.size() < 80; ++t) {
    requests[1].prompt.push_back(3 + (t * 41 + 7) % (vocab - 3));
  }
  return requests;
}

}  // namespace heddle::test
