// Costs of ops in approximate nanoseconds, to decide how many threads to wake.
#pragma once

namespace heddle::kernels::cpu {

inline constexpr double kNsPerNormElement = 0.25;
inline constexpr double kNsPerRotatedElement = 0.5;
inline constexpr double kNsPerAngle = 30;
inline constexpr double kNsPerGatheredElement = 2;  // one cache line each

}  // namespace heddle::kernels::cpu
