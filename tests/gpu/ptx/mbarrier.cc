#include "tests/gpu/ptx/mbarrier.h"

#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

// ISA 9.7.13.15.2 "Contents of the mbarrier object".
constexpr int32_t kMaxCount = (1 << 20) - 1;
// The result of mbarrier.arrive is opaque; ours is recognised by these bits above the phase.
constexpr uint64_t kStateMark = uint64_t{0xB4} << 56;

enum class Wait : int64_t { kState, kParity };

uint64_t Packed(const Mbarrier& barrier) {
  return uint64_t{barrier.phase & 3} << 62 | static_cast<uint64_t>(barrier.expected) << 42 |
         static_cast<uint64_t>(barrier.pending) << 22 |
         static_cast<uint64_t>(barrier.bytes + (1 << 20));
}

uint8_t* Place(Warp& warp, uint32_t address, int lane) {
  return warp.Shared(address, sizeof(uint64_t), lane);
}

bool Fails(Warp& warp, std::string_view message, int lane) {
  warp.Fail(message, lane);
  return false;
}

bool IsIntact(Warp& warp, uint32_t address, const Mbarrier& barrier, int lane) {
  const uint8_t* place = Place(warp, address, lane);
  const uint64_t packed = Packed(barrier);
  return place != nullptr && std::memcmp(place, &packed, sizeof(packed)) == 0;
}

// nullptr after Fail.
Mbarrier* Find(Warp& warp, uint32_t address, int lane) {
  if (Place(warp, address, lane) == nullptr) return nullptr;
  auto& barriers = BulkCopiesOf(warp.block()).barriers;
  const auto found = barriers.find(address);
  if (found == barriers.end()) {
    Fails(warp, absl::StrCat("no mbarrier was initialised at shared address ", address), lane);
    return nullptr;
  }
  if (!IsIntact(warp, address, found->second, lane)) {
    Fails(warp, absl::StrCat("the mbarrier at shared address ", address, " was overwritten"), lane);
    return nullptr;
  }
  return &found->second;
}

void Keep(Warp& warp, uint32_t address, const Mbarrier& barrier, int lane) {
  const uint64_t packed = Packed(barrier);
  std::memcpy(Place(warp, address, lane), &packed, sizeof(packed));
}

// ISA 9.7.13.15.5.1: a phase is over when no arrivals are pending and the tx-count is zero.
void EndPhaseIfOver(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
}

bool AddBytes(Warp& warp, Mbarrier& barrier, int64_t bytes, int lane) {
  const int64_t sum = barrier.bytes + bytes;
  if (sum > kMaxCount || sum < -kMaxCount) {
    return Fails(warp, absl::StrCat("a tx-count of ", sum, " is out of range"), lane);
  }
  barrier.bytes = static_cast<int32_t>(sum);
  return true;
}

uint32_t Address(Warp& warp, const Operand& operand, int lane) {
  return static_cast<uint32_t>(warp.Address(operand, lane));
}

Outcome RunInit(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const uint32_t* count = warp.Row<uint32_t>(instruction.operands[1]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint32_t address = Address(warp, instruction.operands[0], lane);
    if (Place(warp, address, lane) == nullptr) return Outcome::kAgain;
    if (count[lane] < 1 || count[lane] > static_cast<uint32_t>(kMaxCount)) {
      return warp.Fail(absl::StrCat("mbarrier.init with a count of ", count[lane]), lane);
    }
    auto& barriers = BulkCopiesOf(warp.block()).barriers;
    const auto found = barriers.find(address);
    if (found != barriers.end() && IsIntact(warp, address, found->second, lane)) {
      return warp.Fail("mbarrier.init where there is a valid mbarrier", lane);
    }
    Mbarrier barrier;
    barrier.expected = barrier.pending = static_cast<int32_t>(count[lane]);
    barrier.unfenced_warp = warp.index();
    barriers[address] = barrier;
    Keep(warp, address, barrier, lane);
  }
  return Outcome::kDone;
}

Outcome RunInvalidate(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint32_t address = Address(warp, instruction.operands[0], lane);
    if (Find(warp, address, lane) == nullptr) return Outcome::kAgain;
    BulkCopiesOf(warp.block()).barriers.erase(address);
    std::memset(Place(warp, address, lane), 0xFF, sizeof(uint64_t));
  }
  return Outcome::kDone;
}

// arrive, with a count, and arrive.expect_tx, with bytes: expect-tx comes first (9.7.13.15.13).
Outcome RunArrive(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const bool expects_bytes = instruction.detail[0] != 0;
  const bool has_count = instruction.operands.size() > 2;
  const Operand& state = instruction.operands[0];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint32_t address = Address(warp, instruction.operands[1], lane);
    Mbarrier* barrier = Find(warp, address, lane);
    if (barrier == nullptr) return Outcome::kAgain;
    const uint32_t given = has_count ? warp.Row<uint32_t>(instruction.operands[2])[lane] : 1;
    if (expects_bytes && !AddBytes(warp, *barrier, given, lane)) return Outcome::kAgain;
    const uint32_t count = expects_bytes ? 1 : given;
    if (count < 1 || count > static_cast<uint32_t>(barrier->pending)) {
      return warp.Fail(absl::StrCat("arriving ", count, " times at an mbarrier with ",
                                    barrier->pending, " arrivals pending"),
                       lane);
    }
    if (state.kind == Operand::Kind::kRow) {
      warp.Row<uint64_t>(state)[lane] = kStateMark | barrier->phase;
    }
    barrier->pending -= static_cast<int32_t>(count);
    EndPhaseIfOver(*barrier);
    Keep(warp, address, *barrier, lane);
  }
  return Outcome::kDone;
}

Outcome RunExpect(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const uint32_t* bytes = warp.Row<uint32_t>(instruction.operands[1]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint32_t address = Address(warp, instruction.operands[0], lane);
    Mbarrier* barrier = Find(warp, address, lane);
    if (barrier == nullptr || !AddBytes(warp, *barrier, bytes[lane], lane)) return Outcome::kAgain;
    EndPhaseIfOver(*barrier);
    Keep(warp, address, *barrier, lane);
  }
  return Outcome::kDone;
}

// ISA 9.7.13.15.16: the state is of the current phase or the one before it; a parity that is the
// current phase's own asks for its end.
bool IsOver(Warp& warp, const Instruction& instruction, const Mbarrier& barrier, int lane) {
  const Operand& operand = instruction.operands[2];
  if (static_cast<Wait>(instruction.detail[0]) == Wait::kParity) {
    const uint32_t parity = warp.Row<uint32_t>(operand)[lane];
    if (parity > 1) Fails(warp, absl::StrCat("there is no phase parity ", parity), lane);
    return (barrier.phase & 1) != parity;
  }
  const uint64_t state = warp.Row<uint64_t>(operand)[lane];
  const auto phase = static_cast<uint32_t>(state);
  if ((kStateMark | phase) != state || barrier.phase - phase > 1) {
    Fails(warp, "not the state of the mbarrier's current phase or the one before", lane);
  }
  return barrier.phase != phase;
}

// Lanes whose phase is over; false after Fail.
bool FindOver(Warp& warp, const Instruction& instruction, Lanes lanes, Lanes* over) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const Mbarrier* barrier = Find(warp, Address(warp, instruction.operands[1], lane), lane);
    if (barrier == nullptr) return false;
    if (IsOver(warp, instruction, *barrier, lane)) *over |= Lanes{1} << lane;
    if (warp.block().failed()) return false;
  }
  return true;
}

// try_wait suspends the thread for a time that the system chooses; here until it is worth trying.
Outcome RunTryWait(Warp& warp, const Instruction& instruction, Lanes lanes) {
  Lanes over = 0;
  if (!FindOver(warp, instruction, lanes, &over) || (over == 0 && lanes != 0)) {
    return Outcome::kAgain;
  }
  warp.SetPredicate(instruction.operands[0], lanes, over);
  return Outcome::kDone;
}

// test_wait does not suspend: a loop around it continues because pending operations happen
// meanwhile.
Outcome RunTestWait(Warp& warp, const Instruction& instruction, Lanes lanes) {
  Lanes over = 0;
  if (!FindOver(warp, instruction, lanes, &over)) return Outcome::kAgain;
  warp.SetPredicate(instruction.operands[0], lanes, over);
  if (over != lanes) AdvanceBulkCopies(warp.block());
  return Outcome::kDone;
}

bool IsAddress(const Operand& operand) { return operand.kind == Operand::Kind::kAddress; }

bool IsState(const Operand& operand) {
  return operand.kind == Operand::Kind::kSink ||
         (operand.kind == Operand::Kind::kRow && operand.bytes == 8);
}

Run BindWait(Kernel& kernel, Instruction& instruction, bool tries) {
  auto& operands = instruction.operands;
  const bool parity = instruction.Has("parity");
  if (operands.size() != 3 || operands[0].kind != Operand::Kind::kPredicate ||
      !IsAddress(operands[1]) || !BindSource(kernel, operands[2], parity ? 4 : 8)) {
    return nullptr;
  }
  instruction.detail[0] = static_cast<int64_t>(parity ? Wait::kParity : Wait::kState);
  return tries ? RunTryWait : RunTestWait;
}

Run BindArrive(Kernel& kernel, Instruction& instruction) {
  auto& operands = instruction.operands;
  const bool expects_bytes = instruction.Has("expect_tx");
  if (operands.size() < (expects_bytes ? 3 : 2) || operands.size() > 3 || !IsState(operands[0]) ||
      !IsAddress(operands[1]) || (operands.size() > 2 && !BindSource(kernel, operands[2], 4))) {
    return nullptr;
  }
  instruction.detail[0] = expects_bytes ? 1 : 0;
  return RunArrive;
}

// Barriers of this block in the .shared window are meant: the only ones without clusters.
bool KnowsModifiers(const Instruction& instruction) {
  bool shared = false;
  for (size_t i = 1; i < instruction.modifiers.size(); ++i) {
    const std::string& modifier = instruction.modifiers[i];
    const bool space = modifier == "shared" || modifier == "shared::cta";
    shared = shared || space;
    if (!space && modifier != "b64" && modifier != "parity" && modifier != "expect_tx" &&
        modifier != "release" && modifier != "acquire" && modifier != "cta" &&
        modifier != "relaxed") {
      return false;
    }
  }
  return shared;
}

}  // namespace

Run BindMbarrier(Kernel& kernel, Instruction& instruction) {
  auto& operands = instruction.operands;
  if (instruction.opcode != "mbarrier" || instruction.modifiers.empty() || operands.empty() ||
      !KnowsModifiers(instruction)) {
    return nullptr;
  }
  const std::string& operation = instruction.modifiers[0];
  if (operation == "try_wait") return BindWait(kernel, instruction, /*tries=*/true);
  if (operation == "test_wait") return BindWait(kernel, instruction, /*tries=*/false);
  if (operation == "arrive") return BindArrive(kernel, instruction);
  if (!IsAddress(operands[0])) return nullptr;
  if (operation == "inval") return operands.size() == 1 ? RunInvalidate : nullptr;
  if (operands.size() != 2 || !BindSource(kernel, operands[1], 4)) return nullptr;
  if (operation == "init") return RunInit;
  if (operation == "expect_tx") return RunExpect;
  return nullptr;
}

bool CheckSignalled(Warp& warp, uint32_t address, int lane) {
  const Mbarrier* barrier = Find(warp, address, lane);
  if (barrier == nullptr) return false;
  if (barrier->unfenced_warp < 0) return true;
  return Fails(warp,
               absl::StrCat("no fence.mbarrier_init or fence.proxy.async between mbarrier.init at "
                            "shared address ",
                            address, " and the copy that signals it"),
               lane);
}

bool CompleteTransaction(Warp& warp, uint32_t address, int32_t bytes, int lane) {
  Mbarrier* barrier = Find(warp, address, lane);
  if (barrier == nullptr || !AddBytes(warp, *barrier, -int64_t{bytes}, lane)) return false;
  EndPhaseIfOver(*barrier);
  Keep(warp, address, *barrier, lane);
  return true;
}

void FenceMbarriers(Warp& warp) {
  for (auto& [address, barrier] : BulkCopiesOf(warp.block()).barriers) {
    if (barrier.unfenced_warp == warp.index()) barrier.unfenced_warp = -1;
  }
}

}  // namespace heddle::ptx
