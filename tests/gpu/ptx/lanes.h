// Instructions that are the same arithmetic in every lane: d = f(a, b, c). For arithmetic.cc and
// conversions.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/gpu/ptx/machine.h"

namespace heddle::ptx {

// Type of a source that is a predicate.
struct Flag {};

template <typename T>
inline constexpr uint8_t kWidth = sizeof(T);
template <>
inline constexpr uint8_t kWidth<Flag> = 0;

// Rows of sources as arrays, predicates as masks.
template <typename T>
struct Source {
  Source(Warp& warp, const Operand& operand) : row(warp.Row<T>(operand)) {}
  T operator[](int lane) const { return row[lane]; }
  const T* row;
};
template <>
struct Source<Flag> {
  Source(Warp& warp, const Operand& operand) : lanes(warp.Predicate(operand)) {}
  bool operator[](int lane) const { return (lanes >> lane & 1) != 0; }
  Lanes lanes;
};

template <typename D>
void StoreLanes(Warp& warp, const Operand& to, Lanes lanes, const D* values) {
  D* row = warp.Row<D>(to);
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kWarpLanes; ++lane) row[lane] = values[lane];
  } else {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if ((lanes >> lane & 1) != 0) row[lane] = values[lane];
    }
  }
}

template <typename F, typename D, typename... S, size_t... kIndex>
Outcome RunLanes(Warp& warp, const Instruction& i, Lanes lanes, std::index_sequence<kIndex...>) {
  const std::tuple<Source<S>...> from(Source<S>(warp, i.operands[kIndex + 1])...);
  if constexpr (kWidth<D> == 0) {
    Lanes result = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      result |= static_cast<Lanes>(static_cast<bool>(F{}(std::get<kIndex>(from)[lane]...))) << lane;
    }
    warp.SetPredicate(i.operands[0], lanes, result);
  } else {
    D values[kWarpLanes];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      values[lane] = static_cast<D>(F{}(std::get<kIndex>(from)[lane]...));
    }
    StoreLanes(warp, i.operands[0], lanes, values);
  }
  return Outcome::kDone;
}

template <typename F, typename D, typename... S>
Outcome RunLanes(Warp& warp, const Instruction& i, Lanes lanes) {
  return RunLanes<F, D, S...>(warp, i, lanes, std::index_sequence_for<S...>());
}

// By whole name ("add.s32"): what runs it and how wide its operands are, the destination first.
class LaneTable {
 public:
  struct Entry {
    Run run;
    std::vector<uint8_t> widths;
  };

  template <typename D, typename... S, typename F>
  void Add(std::string name, F) {
    entries_[std::move(name)] = {RunLanes<F, D, S...>, {kWidth<D>, kWidth<S>...}};
  }
  // nullptr: no such instruction, or operands of other widths.
  Run Bind(Kernel& kernel, Instruction& instruction) const;

 private:
  std::map<std::string, Entry, std::less<>> entries_;
};

// "add.s32": opcode and modifiers.
std::string NameOf(const Instruction& instruction);

// conversions.cc: cvt.
Run BindConversion(Kernel& kernel, Instruction& instruction);

}  // namespace heddle::ptx
