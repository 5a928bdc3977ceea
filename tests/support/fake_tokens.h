// The model that FakeExecutor stands for: which token follows which history. A history is a hash of
// the tokens before.
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/step.h"

namespace heddle::test {

using engine::TokenId;

inline constexpr uint64_t kEmptyHistory =
    0x243f6a8885a308d3;  // digits of pi: any odd constant does

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t Extend(uint64_t history, TokenId token) {
  return Mix(history ^ (static_cast<uint64_t>(token) + 1));
}

inline TokenId TokenFor(uint64_t history, uint64_t seed, int64_t position, int32_t vocab) {
  uint64_t draw = Mix(history ^ Mix(seed ^ Mix(static_cast<uint64_t>(position))));
  return static_cast<TokenId>(draw % static_cast<uint64_t>(vocab));
}

inline float LogprobFor(uint64_t history, TokenId token) {
  return -static_cast<float>(Extend(history, token) % 1000) / 100.0f;
}

// The history behind a token that a row sees, and what it is if the token's own history began
// without what is before it in the list.
inline uint64_t See(uint64_t history, TokenId token, engine::Position position, uint64_t own) {
  const uint64_t next = Extend(history, token);
  return next == own ? next : Mix(history ^ own ^ Mix(static_cast<uint64_t>(position)));
}

inline engine::SampledToken Report(uint64_t history, TokenId token, int32_t num_top) {
  engine::SampledToken out{.token = token, .logprob = LogprobFor(history, token)};
  for (TokenId t = 0; t < num_top; ++t) out.top.push_back({t, LogprobFor(history, t)});
  std::sort(out.top.begin(), out.top.end(),
            [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
  return out;
}

}  // namespace heddle::test
