// One row of x times two panels of 16-bit floats at once, where vectors are short: a panel's two
// chains of additions take 64 bytes of weights in twice the latency of an Fma, which is less than a
// core reads. Each sum has the products of the panel's own kernel in the same order.
// REQUIRES: linear_float.h included before.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

// Two columns, whose weights are 4 * kPanelRows bytes.
inline void AddColumns(F16Panel, const uint8_t* weights, const float* x, Accumulators<1>& sums) {
  const auto* w = reinterpret_cast<const uint16_t*>(weights);
  sums.Step(FromF16(w), FromF16(w + kLanes), x);
  sums.Step(FromF16(w + kPanelRows), FromF16(w + kPanelRows + kLanes), x + 1);
}
inline void AddColumns(BF16Panel, const uint8_t* weights, const float* x, Accumulators<1>& sums) {
  const auto* w = reinterpret_cast<const int32_t*>(weights);
  sums.Step(BF16Panel::Even(w), BF16Panel::Even(w + kLanes), x);
  sums.Step(BF16Panel::Odd(w), BF16Panel::Odd(w + kLanes), x + 1);
}

// The last of an odd number.
inline void AddColumn(F16Panel, const uint8_t* weights, const float* x, Accumulators<1>& sums) {
  const auto* w = reinterpret_cast<const uint16_t*>(weights);
  sums.Step(FromF16(w), FromF16(w + kLanes), x);
}
inline void AddColumn(BF16Panel, const uint8_t* weights, const float* x, Accumulators<1>& sums) {
  const auto* w = reinterpret_cast<const int32_t*>(weights);
  sums.Step(BF16Panel::Even(w), BF16Panel::Even(w + kLanes), x);
}

template <typename Panel>
void MultiplyRowPair(const RowPairArgs& args) {
  constexpr int64_t kStepBytes = int64_t{4} * kPanelRows;
  const auto* first = static_cast<const uint8_t*>(args.panels[0]);
  const auto* second = static_cast<const uint8_t*>(args.panels[1]);
  const auto* x = static_cast<const float*>(args.tile);
  Accumulators<1> sums[2];
  sums[0].Start(args.sums[0]);
  sums[1].Start(args.sums[1]);
  auto step = [&](int64_t count, int64_t ahead) __attribute__((always_inline)) {
    for (; count > 0; --count, first += kStepBytes, second += kStepBytes, x += 2) {
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(first + ahead + line);
        __builtin_prefetch(second + ahead + line);
      }
      AddColumns(Panel{}, first, x, sums[0]);
      AddColumns(Panel{}, second, x, sums[1]);
    }
  };
  const int64_t steps = args.cols / 2;
  const int64_t last = std::min(args.ahead / kStepBytes, steps);
  step(steps - last, args.ahead);
  step(last, args.ahead + args.skipped);
  if (args.cols % 2 != 0) {
    AddColumn(Panel{}, first, x, sums[0]);
    AddColumn(Panel{}, second, x, sums[1]);
  }
  sums[0].Save(args.sums[0]);
  sums[1].Save(args.sums[1]);
}

}  // namespace
}  // namespace heddle::kernels::cpu
