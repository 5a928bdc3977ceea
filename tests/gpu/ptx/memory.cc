// Loads, stores and atomic operations of all state spaces. Sections of the ISA: 5 "State Spaces",
// 9.7.9 "Data Movement and Conversion Instructions", 9.7.13.5 "atom".
#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/operands.h"

namespace heddle::ptx {
namespace {

enum Space : int64_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// Fields of an access in Instruction::detail.
enum Detail : size_t { kSpace, kBytes, kSigned };

uint8_t* Behind(Warp& warp, int64_t space, uint64_t address, int bytes, int lane) {
  switch (space) {
    case kGlobal:
      return warp.Global(address, bytes, lane);
    case kShared:
      return warp.Shared(address, bytes, lane);
    case kLocal:
      return warp.Local(address, bytes, lane);
    case kParam:
      return const_cast<uint8_t*>(warp.Param(address, bytes, lane));
    default:
      return warp.Generic(address, bytes, lane);
  }
}

void Count(Warp& warp, int64_t space, const uint64_t* addresses, int bytes, Lanes lanes) {
  const uint64_t window = addresses[__builtin_ctz(lanes)] & kWindowMask;
  if (space == kShared || (space == kGeneric && window == kSharedWindow)) {
    warp.CountShared(addresses, bytes, lanes);
  } else if (space == kGlobal || (space == kGeneric && window == 0)) {
    warp.CountGlobal(addresses, bytes, lanes);
  }
}

// The generic proxy has stored there: see Block::stored_by.
void MarkStored(Warp& warp, int64_t space, uint64_t address, int bytes) {
  if (space == kGeneric && (address & kWindowMask) == kSharedWindow) {
    address &= ~kWindowMask;
  } else if (space != kShared) {
    return;
  }
  const uint64_t first = (address - kSharedBase) / 16;
  const uint64_t last = (address - kSharedBase + static_cast<uint64_t>(bytes) - 1) / 16;
  for (uint64_t i = first; i <= last; ++i) {
    warp.block().stored_by[i] = static_cast<uint8_t>(1 + warp.index());
  }
}

// A value of `bytes` as it lies in memory, into a register that may be wider.
void ToRegister(Warp& warp, const Operand& to, int lane, const uint8_t* from, size_t bytes,
                bool is_signed) {
  if (to.kind == Operand::Kind::kSink) return;
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  if (is_signed && bytes < 8 && (value >> (8 * bytes - 1) & 1) != 0)
    value |= ~uint64_t{0} << 8 * bytes;
  std::memcpy(warp.Row<uint8_t>(to) + static_cast<size_t>(lane) * to.bytes, &value, to.bytes);
}

// Operands that an access reads or writes: the elements of a vector, or the one operand.
std::span<const Operand> Values(const Operand& operand) {
  if (operand.kind == Operand::Kind::kVector) return operand.elements;
  return {&operand, 1};
}

// Where lanes access memory: addresses as the instruction gives them, and host memory.
struct Places {
  uint64_t address[kWarpLanes];
  uint8_t* at[kWarpLanes];
};

// All lanes at once, where they lie within one range; `begin` and `end` are addresses, and
// `memory` is what lies at `begin`.
bool LocateWithin(uint64_t begin, uint64_t end, uint8_t* memory, int bytes, Lanes lanes,
                  Places& places) {
  const auto size = static_cast<uint64_t>(bytes);
  if (end - begin < size) return false;
  const uint64_t most = end - begin - size;
  bool fits = true;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const uint64_t offset = places.address[lane] - begin;
    const bool is_good = offset <= most && (places.address[lane] & (size - 1)) == 0;
    fits &= is_good || (lanes >> lane & 1) == 0;
    places.at[lane] = memory + offset;
  }
  return fits;
}

// False after Fail.
bool Locate(Warp& warp, int64_t space, const Operand& address, int bytes, Lanes lanes,
            Places& places) {
  for (int lane = 0; lane < kWarpLanes; ++lane) places.address[lane] = warp.Address(address, lane);
  if (space == kGlobal) {
    const auto& [begin, end] = warp.block().machine().last_range();
    if (LocateWithin(begin, end, reinterpret_cast<uint8_t*>(begin), bytes, lanes, places)) {
      return true;
    }
  } else if (space == kShared) {
    auto& shared = warp.block().shared();
    if (LocateWithin(kSharedBase, kSharedBase + shared.size(), shared.data(), bytes, lanes,
                     places)) {
      return true;
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    places.at[lane] = Behind(warp, space, places.address[lane], bytes, lane);
    if (places.at[lane] == nullptr) return false;
  }
  return true;
}

template <typename T>
void LoadRow(const Places& places, size_t offset, Lanes lanes, T* row) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) std::memcpy(row + lane, places.at[lane] + offset, sizeof(T));
  }
}

template <typename T>
void StoreRow(const Places& places, size_t offset, Lanes lanes, const T* row) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) std::memcpy(places.at[lane] + offset, row + lane, sizeof(T));
  }
}

// The element at `offset` of each lane's place into a register.
void LoadElement(Warp& warp, const Instruction& i, const Operand& to, const Places& places,
                 size_t offset, Lanes lanes) {
  const auto size = static_cast<size_t>(i.detail[kBytes]);
  if (to.kind == Operand::Kind::kSink) return;
  if (to.bytes == size) {
    switch (size) {
      case 2:
        return LoadRow(places, offset, lanes, warp.Row<uint16_t>(to));
      case 4:
        return LoadRow(places, offset, lanes, warp.Row<uint32_t>(to));
      default:
        return LoadRow(places, offset, lanes, warp.Row<uint64_t>(to));
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    ToRegister(warp, to, lane, places.at[lane] + offset, size, i.detail[kSigned] != 0);
  }
}

// Registers may be wider: their low bytes.
void StoreElement(Warp& warp, const Operand& from, size_t size, const Places& places, size_t offset,
                  Lanes lanes) {
  if (from.bytes == size) {
    switch (size) {
      case 2:
        return StoreRow(places, offset, lanes, warp.Row<uint16_t>(from));
      case 4:
        return StoreRow(places, offset, lanes, warp.Row<uint32_t>(from));
      default:
        return StoreRow(places, offset, lanes, warp.Row<uint64_t>(from));
    }
  }
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    std::memcpy(places.at[lane] + offset, warp.Row<uint8_t>(from) + lane * from.bytes, size);
  }
}

Outcome RunLoad(Warp& warp, const Instruction& i, Lanes lanes) {
  const auto values = Values(i.operands[0]);
  const auto size = static_cast<size_t>(i.detail[kBytes]);
  const int bytes = static_cast<int>(size * values.size());
  Places places;
  if (!Locate(warp, i.detail[kSpace], i.operands[1], bytes, lanes, places)) return Outcome::kAgain;
  for (size_t v = 0; v < values.size(); ++v) {
    LoadElement(warp, i, values[v], places, v * size, lanes);
  }
  Count(warp, i.detail[kSpace], places.address, bytes, lanes);
  return Outcome::kDone;
}

Outcome RunStore(Warp& warp, const Instruction& i, Lanes lanes) {
  const auto values = Values(i.operands[1]);
  const auto size = static_cast<size_t>(i.detail[kBytes]);
  const int bytes = static_cast<int>(size * values.size());
  Places places;
  if (!Locate(warp, i.detail[kSpace], i.operands[0], bytes, lanes, places)) return Outcome::kAgain;
  for (size_t v = 0; v < values.size(); ++v) {
    StoreElement(warp, values[v], size, places, v * size, lanes);
  }
  if (i.detail[kSpace] != kGlobal) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if ((lanes >> lane & 1) != 0) {
        MarkStored(warp, i.detail[kSpace], places.address[lane], bytes);
      }
    }
  }
  Count(warp, i.detail[kSpace], places.address, bytes, lanes);
  return Outcome::kDone;
}

// Computes d = old; new = f(old, b), one lane after the other, as a device may do it.
template <typename T, typename F>
Outcome RunAtomic(Warp& warp, const Instruction& i, Lanes lanes) {
  const bool keeps = i.opcode == "atom";
  const size_t at = keeps ? 1 : 0;
  const T* b = warp.Row<T>(i.operands[at + 1]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint64_t address = warp.Address(i.operands[at], lane);
    uint8_t* there = Behind(warp, i.detail[kSpace], address, sizeof(T), lane);
    if (there == nullptr) return Outcome::kAgain;
    T old;
    std::memcpy(&old, there, sizeof(T));
    const T now = F{}(old, b[lane]);
    std::memcpy(there, &now, sizeof(T));
    MarkStored(warp, i.detail[kSpace], address, sizeof(T));
    if (keeps && i.operands[0].kind == Operand::Kind::kRow) {
      warp.Row<T>(i.operands[0])[lane] = old;
    }
  }
  return Outcome::kDone;
}

Outcome RunNothing(Warp&, const Instruction&, Lanes) { return Outcome::kDone; }

// To a generic address, or back: the windows differ by a constant, global memory's by nothing.
template <bool kToGeneric>
Outcome RunConvertAddress(Warp& warp, const Instruction& i, Lanes lanes) {
  const auto window = static_cast<uint64_t>(i.detail[0]);
  const auto* from = warp.Row<uint64_t>(i.operands[1]);
  auto* to = warp.Row<uint64_t>(i.operands[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    if (!kToGeneric && (from[lane] & kWindowMask) != window) {
      return warp.Fail("an address of another state space", lane);
    }
    to[lane] = kToGeneric ? from[lane] | window : from[lane] & ~window;
  }
  return Outcome::kDone;
}

std::optional<Space> SpaceOf(std::string_view word) {
  if (word == "global" || word == "const") return kGlobal;
  if (word == "shared" || word == "shared::cta") return kShared;
  if (word == "local") return kLocal;
  if (word == "param" || word == "param::entry") return kParam;
  return std::nullopt;
}

// Instructions that change neither values nor faults.
bool IsHint(std::string_view word) {
  static const std::set<std::string_view> hints = {
      "ca",  "cg",  "cs",  "cv",      "wb",      "wt",      "lu",      "nc",      "weak",
      "gpu", "sys", "cta", "relaxed", "acquire", "release", "acq_rel", "volatile"};
  return hints.contains(word) || word.starts_with("L1::") || word.starts_with("L2::");
}

// Space and type of an access; how many elements is to agree with .v2 or .v4. False: not known.
bool ReadAccess(Instruction& i, const Operand& values, std::string_view* operation) {
  size_t elements = 1;
  std::string_view type;
  for (const std::string& word : i.modifiers) {
    if (const auto space = SpaceOf(word); space.has_value()) {
      i.detail[kSpace] = *space;
    } else if (word == "v2" || word == "v4") {
      elements = word == "v2" ? 2 : 4;
    } else if (TypeBytes("." + word) > 0) {
      type = word;
    } else if (!IsHint(word)) {
      if (operation == nullptr || !operation->empty()) return false;
      *operation = word;
    }
  }
  if (type.empty() || Values(values).size() != elements) return false;
  i.detail[kBytes] = TypeBytes(std::string(".").append(type));
  i.detail[kSigned] = type[0] == 's';
  return true;
}

bool AreValues(std::span<const Operand> operands, int64_t bytes, bool may_be_sinks) {
  return std::all_of(operands.begin(), operands.end(), [&](const Operand& o) {
    return (o.kind == Operand::Kind::kRow && o.bytes >= bytes) ||
           (may_be_sinks && o.kind == Operand::Kind::kSink);
  });
}

Run BindLoad(Instruction& i) {
  if (i.operands.size() != 2 || i.operands[1].kind != Operand::Kind::kAddress ||
      !ReadAccess(i, i.operands[0], nullptr) ||
      !AreValues(Values(i.operands[0]), i.detail[kBytes], true)) {
    return nullptr;
  }
  // Parameters of functions, not of the kernel.
  const bool is_of_call =
      i.detail[kSpace] == kParam && i.operands[1].value >= UINT32_MAX && i.operands[1].row < 0;
  return is_of_call ? nullptr : RunLoad;
}

Run BindStore(Kernel& kernel, Instruction& i) {
  if (i.operands.size() != 2 || i.operands[0].kind != Operand::Kind::kAddress ||
      !ReadAccess(i, i.operands[1], nullptr) || i.detail[kSpace] == kParam) {
    return nullptr;
  }
  const auto bytes = static_cast<uint8_t>(std::max<int64_t>(2, i.detail[kBytes]));
  Operand& values = i.operands[1];
  if (values.kind == Operand::Kind::kVector) {
    for (Operand& o : values.elements) {
      if (o.kind == Operand::Kind::kImmediate) BindSource(kernel, o, bytes);
    }
  } else if (values.kind == Operand::Kind::kImmediate) {
    BindSource(kernel, values, bytes);
  }
  return AreValues(Values(values), i.detail[kBytes], false) ? RunStore : nullptr;
}

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Exchange {
  template <typename T>
  T operator()(T, T b) const {
    return b;
  }
};

Run AtomicOf(std::string_view operation, std::string_view type) {
  if (operation == "add" && type == "f32") return RunAtomic<float, Add>;
  if (operation == "add" && (type == "u32" || type == "s32")) return RunAtomic<uint32_t, Add>;
  if (operation == "add" && type == "u64") return RunAtomic<uint64_t, Add>;
  if (operation == "max" && type == "u32") return RunAtomic<uint32_t, Max>;
  if (operation == "max" && type == "s32") return RunAtomic<int32_t, Max>;
  if (operation == "min" && type == "u32") return RunAtomic<uint32_t, Min>;
  if (operation == "min" && type == "s32") return RunAtomic<int32_t, Min>;
  if (operation == "or" && type == "b32") return RunAtomic<uint32_t, Or>;
  if (operation == "exch" && type == "b32") return RunAtomic<uint32_t, Exchange>;
  return nullptr;
}

Run BindAtomic(Kernel& kernel, Instruction& i) {
  const size_t at = i.opcode == "atom" ? 1 : 0;
  std::string_view operation;
  if (i.operands.size() != at + 2 || i.operands[at].kind != Operand::Kind::kAddress ||
      !ReadAccess(i, i.operands[at + 1], &operation)) {
    return nullptr;
  }
  const auto bytes = static_cast<uint8_t>(i.detail[kBytes]);
  if (bytes < 4 || !BindSource(kernel, i.operands[at + 1], bytes)) return nullptr;
  return AtomicOf(operation, i.modifiers.back());
}

Run BindConvertAddress(Kernel& kernel, Instruction& i) {
  const bool to_space = i.Has("to");
  if (i.modifiers.size() != (to_space ? 3u : 2u) || i.modifiers.back() != "u64" ||
      i.operands.size() != 2 || i.operands[0].kind != Operand::Kind::kRow) {
    return nullptr;
  }
  const auto space = SpaceOf(i.modifiers[to_space ? 1 : 0]);
  if (!space.has_value()) return nullptr;
  if (i.operands[1].kind == Operand::Kind::kSymbol) i.operands[1].kind = Operand::Kind::kImmediate;
  if (!BindSource(kernel, i.operands[1], 8)) return nullptr;
  const uint64_t windows[] = {0, 0, kSharedWindow, kLocalWindow, kParamWindow};
  i.detail[0] = static_cast<int64_t>(windows[*space]);
  return to_space ? RunConvertAddress<false> : RunConvertAddress<true>;
}

}  // namespace

Run BindMemory(Kernel& kernel, Instruction& i) {
  if (i.opcode == "ld") return BindLoad(i);
  if (i.opcode == "st") return BindStore(kernel, i);
  if (i.opcode == "atom" || i.opcode == "red") return BindAtomic(kernel, i);
  if (i.opcode == "cvta") return BindConvertAddress(kernel, i);
  // Every thread sees the others' stores at once here.
  if (i.opcode == "membar") return RunNothing;
  if (i.opcode == "fence") {
    const bool is_of_memory = !i.Has("proxy") && !i.Has("mbarrier_init");
    return is_of_memory ? RunNothing : nullptr;
  }
  return nullptr;
}

}  // namespace heddle::ptx
