// Branches, barriers of threads and what lanes of a warp tell each other. Sections of the
// ISA: 9.7.12 "Control Flow Instructions", 9.7.13 "Parallel Synchronization and Communication
// Instructions".
#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/machine.h"

namespace heddle::ptx {

Outcome RunBranch(Warp& warp, const Instruction&, Lanes) {
  return warp.Fail("a branch is the machine's own to run");
}

namespace {

Outcome RunExit(Warp& warp, const Instruction&, Lanes lanes) {
  warp.Exit(lanes);
  return Outcome::kMoved;
}

Outcome RunTrap(Warp& warp, const Instruction&, Lanes) { return warp.Fail("trap"); }

Outcome RunNothing(Warp&, const Instruction&, Lanes) { return Outcome::kDone; }

// Whether all living lanes named in the mask of a converging instruction are at it.
bool AreHere(const Warp& warp, Lanes lanes, Lanes named) {
  return (named & warp.alive() & ~lanes) == 0;
}

// A barrier's number and how many threads meet there: the operands, the same in all lanes.
struct Meeting {
  size_t id = 0;
  int32_t threads = 0;
};

// Returns false after Fail.
bool ReadMeeting(Warp& warp, const Instruction& i, Lanes lanes, Meeting* meeting) {
  uint32_t values[2] = {0, 0};
  for (size_t o = 0; o < i.operands.size(); ++o) {
    const auto* row = warp.Row<uint32_t>(i.operands[o]);
    values[o] = row[std::countr_zero(lanes)];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if ((lanes >> lane & 1) == 0 || row[lane] == values[o]) continue;
      warp.Fail("lanes name different barriers", lane);
      return false;
    }
  }
  if (values[0] > 15 || values[1] % kWarpLanes != 0) {
    warp.Fail(absl::StrCat("barrier ", values[0], " for ", values[1], " threads"));
    return false;
  }
  meeting->id = values[0];
  meeting->threads = static_cast<int32_t>(values[1]);
  if (i.operands.size() == 1) {  // all that there are
    for (const auto& other : warp.block().warps()) {
      meeting->threads += other->alive() != 0 ? kWarpLanes : 0;
    }
  }
  return true;
}

bool Arrive(Warp& warp, const Meeting& meeting) {
  NamedBarrier& barrier = warp.block().barriers()[meeting.id];
  if (barrier.expected != 0 && barrier.expected != meeting.threads) {
    warp.Fail(absl::StrCat("barrier ", meeting.id, " is waiting for ", barrier.expected,
                           " threads, this says ", meeting.threads));
    return false;
  }
  barrier.expected = meeting.threads;
  barrier.arrived += kWarpLanes;
  if (barrier.arrived > barrier.expected) {
    warp.Fail(absl::StrCat(barrier.arrived, " threads at barrier ", meeting.id, " for ",
                           barrier.expected));
    return false;
  }
  if (barrier.arrived == barrier.expected) {
    barrier.arrived = barrier.expected = 0;
    ++barrier.phase;
  }
  return true;
}

// Both are .aligned: they wait until the warp's lanes are together.
Outcome RunBarSync(Warp& warp, const Instruction& i, Lanes lanes) {
  if (lanes != warp.alive()) return Outcome::kAgain;
  Meeting meeting;
  if (!ReadMeeting(warp, i, lanes, &meeting)) return Outcome::kAgain;
  int64_t& waits_for = warp.waits_for[meeting.id];
  if (waits_for < 0) {
    waits_for = warp.block().barriers()[meeting.id].phase;
    if (!Arrive(warp, meeting)) return Outcome::kAgain;
  }
  if (warp.block().barriers()[meeting.id].phase == waits_for) return Outcome::kAgain;
  waits_for = -1;
  return Outcome::kDone;
}

Outcome RunBarArrive(Warp& warp, const Instruction& i, Lanes lanes) {
  if (lanes != warp.alive()) return Outcome::kAgain;
  Meeting meeting;
  return ReadMeeting(warp, i, lanes, &meeting) && Arrive(warp, meeting) ? Outcome::kDone
                                                                        : Outcome::kAgain;
}

Outcome RunBarWarpSync(Warp& warp, const Instruction& i, Lanes lanes) {
  const Lanes named = warp.Row<uint32_t>(i.operands[0])[std::countr_zero(lanes)];
  return AreHere(warp, lanes, named) ? Outcome::kDone : Outcome::kAgain;
}

enum class Shuffle : uint8_t { kUp, kDown, kXor, kIndex };

// 9.7.9.6 "shfl.sync": d[|p], a, b, c, mask.
template <Shuffle kMode>
Outcome RunShuffle(Warp& warp, const Instruction& i, Lanes lanes) {
  const bool says_whether = i.detail[0] != 0;
  const size_t at = says_whether ? 2 : 1;
  const auto* a = warp.Row<uint32_t>(i.operands[at]);
  const auto* b = warp.Row<uint32_t>(i.operands[at + 1]);
  const auto* c = warp.Row<uint32_t>(i.operands[at + 2]);
  const auto* named = warp.Row<uint32_t>(i.operands[at + 3]);
  if (!AreHere(warp, lanes, named[std::countr_zero(lanes)])) return Outcome::kAgain;
  uint32_t result[kWarpLanes];
  Lanes found = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    if ((named[lane] >> lane & 1) == 0)
      return warp.Fail("a lane that its mask does not name", lane);
    const int by = static_cast<int>(b[lane] & 31);
    const int clamp = static_cast<int>(c[lane] & 31), segment = static_cast<int>(c[lane] >> 8 & 31);
    const int most = (lane & segment) | (clamp & ~segment);
    int from = 0;
    bool is_inside = false;
    switch (kMode) {
      case Shuffle::kUp:
        from = lane - by, is_inside = from >= most;
        break;
      case Shuffle::kDown:
        from = lane + by, is_inside = from <= most;
        break;
      case Shuffle::kXor:
        from = lane ^ by, is_inside = from <= most;
        break;
      case Shuffle::kIndex:
        from = (lane & segment) | (by & ~segment), is_inside = from <= most;
        break;
    }
    if (!is_inside) from = lane;
    if ((lanes >> from & 1) == 0) {
      return warp.Fail(absl::StrCat("reads lane ", from, ", which takes no part"), lane);
    }
    result[lane] = a[from];
    found |= static_cast<Lanes>(is_inside) << lane;
  }
  auto* to = warp.Row<uint32_t>(i.operands[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) to[lane] = result[lane];
  }
  if (says_whether) warp.SetPredicate(i.operands[1], lanes, found);
  return Outcome::kDone;
}

// The mask is the last operand of what follows.
bool MaskIsHere(Warp& warp, const Instruction& i, Lanes lanes) {
  return AreHere(warp, lanes, warp.Row<uint32_t>(i.operands.back())[std::countr_zero(lanes)]);
}

enum class Vote : uint8_t { kBallot, kAny, kAll };

template <Vote kMode>
Outcome RunVote(Warp& warp, const Instruction& i, Lanes lanes) {
  if (!MaskIsHere(warp, i, lanes)) return Outcome::kAgain;
  const Lanes yes = warp.Predicate(i.operands[1]) & lanes;
  if constexpr (kMode == Vote::kBallot) {
    auto* to = warp.Row<uint32_t>(i.operands[0]);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if ((lanes >> lane & 1) != 0) to[lane] = yes;
    }
  } else {
    const bool is = kMode == Vote::kAny ? yes != 0 : yes == lanes;
    warp.SetPredicate(i.operands[0], lanes, is ? kAllLanes : 0);
  }
  return Outcome::kDone;
}

template <bool kMax, typename T>
Outcome RunReduce(Warp& warp, const Instruction& i, Lanes lanes) {
  if (!MaskIsHere(warp, i, lanes)) return Outcome::kAgain;
  const T* from = warp.Row<T>(i.operands[1]);
  T best = from[std::countr_zero(lanes)];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    best = kMax ? std::max(best, from[lane]) : std::min(best, from[lane]);
  }
  T* to = warp.Row<T>(i.operands[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) to[lane] = best;
  }
  return Outcome::kDone;
}

Outcome RunActiveMask(Warp& warp, const Instruction& i, Lanes lanes) {
  auto* to = warp.Row<uint32_t>(i.operands[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) to[lane] = lanes;
  }
  return Outcome::kDone;
}

bool IsRow(const Operand& operand, uint8_t bytes) {
  return operand.kind == Operand::Kind::kRow && operand.bytes == bytes;
}

// Operands from `first` on, as rows of 32 bits.
bool BindSources(Kernel& kernel, Instruction& i, size_t first, size_t count) {
  if (i.operands.size() != first + count) return false;
  return std::all_of(i.operands.begin() + static_cast<std::ptrdiff_t>(first), i.operands.end(),
                     [&kernel](Operand& o) { return BindSource(kernel, o, 4); });
}

Run BindBar(Kernel& kernel, Instruction& i) {
  if (i.Has("warp")) {
    return i.Has("sync") && BindSources(kernel, i, 0, 1) ? RunBarWarpSync : nullptr;
  }
  const size_t operands = i.operands.size();
  if (operands < 1 || operands > 2 || !BindSources(kernel, i, 0, operands)) return nullptr;
  if (i.Has("sync")) return RunBarSync;
  return i.Has("arrive") && operands == 2 ? RunBarArrive : nullptr;
}

Run BindShuffle(Kernel& kernel, Instruction& i) {
  if (i.modifiers.size() != 3 || !i.Has("sync") || !i.Has("b32")) return nullptr;
  i.detail[0] = i.operands.size() == 6;
  const size_t first = i.detail[0] != 0 ? 2 : 1;
  if (!IsRow(i.operands[0], 4) || !BindSources(kernel, i, first, 4)) return nullptr;
  if (i.Has("up")) return RunShuffle<Shuffle::kUp>;
  if (i.Has("down")) return RunShuffle<Shuffle::kDown>;
  if (i.Has("bfly")) return RunShuffle<Shuffle::kXor>;
  return i.Has("idx") ? RunShuffle<Shuffle::kIndex> : nullptr;
}

Run BindVote(Kernel& kernel, Instruction& i) {
  if (!i.Has("sync") || i.operands.size() != 3 || i.operands[1].kind != Operand::Kind::kPredicate ||
      !BindSources(kernel, i, 2, 1)) {
    return nullptr;
  }
  if (i.Has("ballot")) return IsRow(i.operands[0], 4) ? RunVote<Vote::kBallot> : nullptr;
  if (i.operands[0].kind != Operand::Kind::kPredicate) return nullptr;
  if (i.Has("any")) return RunVote<Vote::kAny>;
  return i.Has("all") ? RunVote<Vote::kAll> : nullptr;
}

Run BindReduce(Kernel& kernel, Instruction& i) {
  if (!i.Has("sync") || i.operands.empty() || !IsRow(i.operands[0], 4) ||
      !BindSources(kernel, i, 1, 2)) {
    return nullptr;
  }
  if (i.Has("u32") && i.Has("max")) return RunReduce<true, uint32_t>;
  if (i.Has("u32") && i.Has("min")) return RunReduce<false, uint32_t>;
  if (i.Has("s32") && i.Has("max")) return RunReduce<true, int32_t>;
  return i.Has("s32") && i.Has("min") ? RunReduce<false, int32_t> : nullptr;
}

}  // namespace

Run BindControl(Kernel& kernel, Instruction& i) {
  if (i.opcode == "bra") return i.operands.size() == 1 ? RunBranch : nullptr;
  if (i.opcode == "ret" || i.opcode == "exit") return RunExit;
  if (i.opcode == "trap") return RunTrap;
  if (i.opcode == "nanosleep") return RunNothing;
  if (i.opcode == "bar" || i.opcode == "barrier") return BindBar(kernel, i);
  if (i.opcode == "shfl") return BindShuffle(kernel, i);
  if (i.opcode == "vote") return BindVote(kernel, i);
  if (i.opcode == "redux") return BindReduce(kernel, i);
  if (i.opcode == "activemask") {
    return i.operands.size() == 1 && IsRow(i.operands[0], 4) ? RunActiveMask : nullptr;
  }
  return nullptr;
}

}  // namespace heddle::ptx
