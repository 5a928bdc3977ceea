// Integers, floats, comparisons, selection, moves. Sections of the ISA: 9.7.1 to 9.7.8, 9.7.9.3
// "mov". Results of .approx are those of the host's library: closer to exact than a device's.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/small_floats.h"

namespace heddle::ptx {
namespace {

using F32 = float;
using F64 = double;
using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;
using S16 = int16_t;
using S32 = int32_t;
using S64 = int64_t;

// Shifts beyond the width, as the ISA has them: zeros, or copies of the sign.
template <typename T>
T ShiftLeft(T a, U32 by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << by);
}
template <typename T>
T ShiftRight(T a, U32 by) {
  constexpr U32 kBits = 8 * sizeof(T);
  if (by < kBits) return static_cast<T>(a >> by);
  return a < 0 ? static_cast<T>(-1) : T{0};
}

template <typename T>
T InsertBits(T a, T b, U32 position, U32 length) {
  constexpr U32 kBits = 8 * sizeof(T);
  position &= 0xFF;
  length = std::min<U32>(length & 0xFF, position < kBits ? kBits - position : 0);
  if (length == 0) return b;
  const T mask = ShiftLeft<T>(length >= kBits ? ~T{0} : (T{1} << length) - 1, position);
  return (ShiftLeft(a, position) & mask) | (b & ~mask);
}

template <typename T>
T ExtractBits(T a, U32 position, U32 length) {
  constexpr U32 kBits = 8 * sizeof(T);
  const T moved = ShiftRight<T>(a, position & 0xFF);
  length &= 0xFF;
  return length >= kBits ? moved : moved & ((T{1} << length) - 1);
}

// prmt in its default mode: bytes, or their signs where bit 3 of the selector's nibble is set.
U32 Permute(U32 a, U32 b, U32 selector) {
  const U64 both = a | static_cast<U64>(b) << 32;
  U32 result = 0;
  for (U32 i = 0; i < 4; ++i) {
    const U32 pick = selector >> (4 * i) & 15;
    U32 byte = static_cast<U32>(both >> (8 * (pick & 7))) & 0xFF;
    if (pick > 7) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// Any of 256 functions of three bits.
U32 Logic3(U32 a, U32 b, U32 c, U32 table) {
  U32 result = 0;
  for (U32 row = 0; row < 8; ++row) {
    if ((table >> row & 1) == 0) continue;
    result |= ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) & ((row & 1) != 0 ? c : ~c);
  }
  return result;
}

// If one of the two is NaN, the result is the other; -0 is less than +0.
F32 Larger(F32 a, F32 b) {
  if (std::isnan(a)) return std::isnan(b) ? std::numeric_limits<F32>::quiet_NaN() : b;
  if (std::isnan(b)) return a;
  return a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
}
F32 Smaller(F32 a, F32 b) { return -Larger(-a, -b); }

F32 FlushSubnormal(F32 x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

F32 FusedRoundedDown(F32 a, F32 b, F32 c) {
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  volatile F32 result = std::fma(a, b, c);
  std::fesetround(before);
  return result;
}

F64 Half(U32 pair, U32 shift) { return FloatOfBF16(static_cast<U16>(pair >> shift)); }

// a * b + c of both halves, rounded once: products of 8-bit significands are exact in F64, and so
// is what is rounded to odd there; F32 in between would round twice.
U32 FusedPairs(U32 a, U32 b, U32 c) {
  U32 result = 0;
  for (U32 shift : {0u, 16u}) {
    const F64 exact = Half(a, shift) * Half(b, shift) + Half(c, shift);
    auto near = static_cast<F32>(exact);
    if (static_cast<F64>(near) != exact && !std::isnan(near)) {  // to odd
      auto bits = std::bit_cast<U32>(near);
      const bool is_away = std::fabs(static_cast<F64>(near)) > std::fabs(exact);
      if (is_away) --bits;
      near = std::bit_cast<F32>(bits | 1);
    }
    result |= U32{BF16OfFloat(near)} << shift;
  }
  return result;
}

// Unsigned arithmetic wraps; the ISA's signed arithmetic does, too.
template <typename T>
void AddIntegers(LaneTable& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  t.Add<T, T, T>("add." + type, [](T a, T b) { return static_cast<U>(a) + static_cast<U>(b); });
  t.Add<T, T, T>("sub." + type, [](T a, T b) { return static_cast<U>(a) - static_cast<U>(b); });
  t.Add<T, T, T>("mul.lo." + type, [](T a, T b) {
    return static_cast<U>(U64{static_cast<U>(a)} * U64{static_cast<U>(b)});
  });
  t.Add<T, T, T, T>("mad.lo." + type, [](T a, T b, T c) {
    return static_cast<U>(U64{static_cast<U>(a)} * U64{static_cast<U>(b)} + static_cast<U>(c));
  });
  t.Add<T, T, T>("div." + type, [](T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? static_cast<T>(U{0} - static_cast<U>(a))
                                                          : static_cast<T>(a / b);
  });
  t.Add<T, T, T>("rem." + type, [](T a, T b) {
    if (b == 0) return a;
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
  });
  t.Add<T, T, T>("min." + type, [](T a, T b) { return std::min(a, b); });
  t.Add<T, T, T>("max." + type, [](T a, T b) { return std::max(a, b); });
  t.Add<T, T>("abs." + type,
              [](T a) { return a < 0 ? U{0} - static_cast<U>(a) : static_cast<U>(a); });
  t.Add<T, T>("neg." + type, [](T a) { return U{0} - static_cast<U>(a); });
  t.Add<T, T, U32>("shr." + type, [](T a, U32 by) { return ShiftRight(a, by); });
}

template <typename T>
void AddBits(LaneTable& t, const std::string& type) {
  t.Add<T, T, T>("and." + type, [](T a, T b) { return a & b; });
  t.Add<T, T, T>("or." + type, [](T a, T b) { return a | b; });
  t.Add<T, T, T>("xor." + type, [](T a, T b) { return a ^ b; });
  t.Add<T, T>("not." + type, [](T a) { return ~a; });
  t.Add<T, T, U32>("shl." + type, [](T a, U32 by) { return ShiftLeft(a, by); });
  t.Add<T, T, U32>("shr." + type, [](T a, U32 by) { return ShiftRight(a, by); });
}

template <typename T>
void AddMoves(LaneTable& t, const std::string& type) {
  t.Add<T, T>("mov." + type, [](T a) { return a; });
  t.Add<T, T, T, Flag>("selp." + type, [](T a, T b, bool c) { return c ? a : b; });
}

// Comparisons, alone and joined to another predicate.
template <typename T, typename F>
void AddComparison(LaneTable& t, const std::string& name, const std::string& type, F) {
  t.Add<Flag, T, T>("setp." + name + "." + type, [](T a, T b) { return F{}(a, b); });
  t.Add<Flag, T, T, Flag>("setp." + name + ".and." + type,
                          [](T a, T b, bool c) { return F{}(a, b) && c; });
  t.Add<Flag, T, T, Flag>("setp." + name + ".or." + type,
                          [](T a, T b, bool c) { return F{}(a, b) || c; });
}

template <typename T>
void AddComparisons(LaneTable& t, const std::string& type) {
  AddComparison<T>(t, "eq", type, [](T a, T b) { return a == b; });
  AddComparison<T>(t, "lt", type, [](T a, T b) { return a < b; });
  AddComparison<T>(t, "le", type, [](T a, T b) { return a <= b; });
  AddComparison<T>(t, "gt", type, [](T a, T b) { return a > b; });
  AddComparison<T>(t, "ge", type, [](T a, T b) { return a >= b; });
  if constexpr (!std::is_floating_point_v<T>) {
    AddComparison<T>(t, "ne", type, [](T a, T b) { return a != b; });
  } else {
    AddComparison<T>(t, "ne", type, [](T a, T b) { return a < b || a > b; });
    AddComparison<T>(t, "equ", type, [](T a, T b) { return !(a < b) && !(a > b); });
    AddComparison<T>(t, "neu", type, [](T a, T b) { return !(a == b); });
    AddComparison<T>(t, "ltu", type, [](T a, T b) { return !(a >= b); });
    AddComparison<T>(t, "leu", type, [](T a, T b) { return !(a > b); });
    AddComparison<T>(t, "gtu", type, [](T a, T b) { return !(a <= b); });
    AddComparison<T>(t, "geu", type, [](T a, T b) { return !(a < b); });
    AddComparison<T>(t, "nan", type, [](T a, T b) { return std::isnan(a) || std::isnan(b); });
    AddComparison<T>(t, "num", type, [](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
  }
}

template <typename T>
void AddFloats(LaneTable& t, const std::string& type) {
  for (const char* rounding : {"", "rn."}) {
    const std::string to = rounding + type;
    t.Add<T, T, T>("add." + to, [](T a, T b) { return a + b; });
    t.Add<T, T, T>("sub." + to, [](T a, T b) { return a - b; });
    t.Add<T, T, T>("mul." + to, [](T a, T b) { return a * b; });
  }
  t.Add<T, T, T, T>("fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
  t.Add<T, T, T>("div.rn." + type, [](T a, T b) { return a / b; });
  t.Add<T, T>("rcp.rn." + type, [](T a) { return 1 / a; });
  t.Add<T, T>("sqrt.rn." + type, [](T a) { return std::sqrt(a); });
  t.Add<T, T>("abs." + type, [](T a) { return std::fabs(a); });
  t.Add<T, T>("neg." + type, [](T a) { return -a; });
  // The sign is that of the first operand.
  t.Add<T, T, T>("copysign." + type, [](T a, T b) { return std::copysign(b, a); });
}

void AddSpecialFloats(LaneTable& t) {
  t.Add<F32, F32, F32>("max.f32", [](F32 a, F32 b) { return Larger(a, b); });
  t.Add<F32, F32, F32>("min.f32", [](F32 a, F32 b) { return Smaller(a, b); });
  t.Add<F32, F32, F32, F32>("fma.rm.f32",
                            [](F32 a, F32 b, F32 c) { return FusedRoundedDown(a, b, c); });
  for (const char* flush : {"", ".ftz"}) {
    const std::string end = std::string(flush) + ".f32";
    t.Add<F32, F32>("ex2.approx" + end,
                    [](F32 a) { return FlushSubnormal(std::exp2(FlushSubnormal(a))); });
    t.Add<F32, F32>("lg2.approx" + end, [](F32 a) { return std::log2(a); });
    t.Add<F32, F32>("rcp.approx" + end,
                    [](F32 a) { return FlushSubnormal(1 / FlushSubnormal(a)); });
    t.Add<F32, F32>("rsqrt.approx" + end, [](F32 a) { return 1 / std::sqrt(a); });
    t.Add<F32, F32>("sqrt.approx" + end, [](F32 a) { return std::sqrt(a); });
    t.Add<F32, F32>("sin.approx" + end, [](F32 a) { return std::sin(a); });
    t.Add<F32, F32>("cos.approx" + end, [](F32 a) { return std::cos(a); });
    // Beyond 2^126 the divisor's reciprocal is no normal number, and the quotient 0.
    t.Add<F32, F32, F32>("div.approx" + end, [](F32 a, F32 b) {
      return std::fabs(b) > 0x1p126f && std::isfinite(b) && std::isfinite(a) ? 0 * a * b : a / b;
    });
  }
  t.Add<F32, F32>("tanh.approx.f32", [](F32 a) { return std::tanh(a); });
  t.Add<U32, U32, U32, U32>("fma.rn.bf16x2",
                            [](U32 a, U32 b, U32 c) { return FusedPairs(a, b, c); });
}

void AddSpecialIntegers(LaneTable& t) {
  t.Add<S64, S32, S32>("mul.wide.s32", [](S64 a, S64 b) { return a * b; });
  t.Add<U64, U32, U32>("mul.wide.u32", [](U64 a, U64 b) { return a * b; });
  t.Add<U32, U16, U16>("mul.wide.u16", [](U32 a, U32 b) { return a * b; });
  t.Add<S32, S16, S16>("mul.wide.s16", [](S32 a, S32 b) { return a * b; });
  t.Add<S64, S32, S32, S64>("mad.wide.s32", [](S64 a, S64 b, S64 c) { return a * b + c; });
  t.Add<U64, U32, U32, U64>("mad.wide.u32", [](U64 a, U64 b, U64 c) { return a * b + c; });
  t.Add<U32, U32, U32>("mul.hi.u32", [](U64 a, U64 b) { return a * b >> 32; });
  t.Add<S32, S32, S32>("mul.hi.s32", [](S64 a, S64 b) { return a * b >> 32; });
  t.Add<U32, U32, U32, U32, U32>("bfi.b32",
                                 [](U32 a, U32 b, U32 p, U32 n) { return InsertBits(a, b, p, n); });
  t.Add<U64, U64, U64, U32, U32>("bfi.b64",
                                 [](U64 a, U64 b, U32 p, U32 n) { return InsertBits(a, b, p, n); });
  t.Add<U32, U32, U32, U32>("bfe.u32", [](U32 a, U32 p, U32 n) { return ExtractBits(a, p, n); });
  t.Add<U32, U32>("popc.b32", [](U32 a) { return std::popcount(a); });
  t.Add<U32, U64>("popc.b64", [](U64 a) { return std::popcount(a); });
  t.Add<U32, U32>("clz.b32", [](U32 a) { return std::countl_zero(a); });
  t.Add<U32, U64>("clz.b64", [](U64 a) { return std::countl_zero(a); });
  t.Add<U32, U32, U32, U32>("prmt.b32", [](U32 a, U32 b, U32 s) { return Permute(a, b, s); });
  t.Add<U32, U32, U32, U32, U32>("lop3.b32",
                                 [](U32 a, U32 b, U32 c, U32 f) { return Logic3(a, b, c, f); });
  t.Add<U32, U32, U32, U32>("shf.l.wrap.b32", [](U32 a, U32 b, U32 by) {
    return static_cast<U32>((static_cast<U64>(b) << 32 | a) << (by & 31) >> 32);
  });
  t.Add<U32, U32, U32, U32>("shf.r.wrap.b32", [](U32 a, U32 b, U32 by) {
    return static_cast<U32>((static_cast<U64>(b) << 32 | a) >> (by & 31));
  });
}

LaneTable MakeTable() {
  LaneTable t;
  AddIntegers<U16>(t, "u16"), AddIntegers<U32>(t, "u32"), AddIntegers<U64>(t, "u64");
  AddIntegers<S16>(t, "s16"), AddIntegers<S32>(t, "s32"), AddIntegers<S64>(t, "s64");
  AddBits<U16>(t, "b16"), AddBits<U32>(t, "b32"), AddBits<U64>(t, "b64");
  for (const char* kind : {"b", "u", "s"}) {
    const std::string letter = kind;
    AddMoves<U16>(t, letter + "16"), AddMoves<U32>(t, letter + "32");
    AddMoves<U64>(t, letter + "64");
  }
  AddMoves<F32>(t, "f32"), AddMoves<F64>(t, "f64");
  AddComparisons<U16>(t, "u16"), AddComparisons<U32>(t, "u32"), AddComparisons<U64>(t, "u64");
  AddComparisons<S16>(t, "s16"), AddComparisons<S32>(t, "s32"), AddComparisons<S64>(t, "s64");
  AddComparisons<U16>(t, "b16"), AddComparisons<U32>(t, "b32"), AddComparisons<U64>(t, "b64");
  AddComparisons<F32>(t, "f32"), AddComparisons<F64>(t, "f64");
  AddFloats<F32>(t, "f32"), AddFloats<F64>(t, "f64");
  AddSpecialFloats(t);
  AddSpecialIntegers(t);
  t.Add<Flag, Flag, Flag>("and.pred", [](bool a, bool b) { return a && b; });
  t.Add<Flag, Flag, Flag>("or.pred", [](bool a, bool b) { return a || b; });
  t.Add<Flag, Flag, Flag>("xor.pred", [](bool a, bool b) { return a != b; });
  t.Add<Flag, Flag>("not.pred", [](bool a) { return !a; });
  t.Add<Flag, Flag>("mov.pred", [](bool a) { return a; });
  return t;
}

// mov.pred p, 1 or 0.
Outcome RunSetPredicate(Warp& warp, const Instruction& i, Lanes lanes) {
  warp.SetPredicate(i.operands[0], lanes, i.operands[1].value != 0 ? kAllLanes : 0);
  return Outcome::kDone;
}

// mov.u32 d, %tid.x and similar registers, selected by `detail`.
enum Special : int64_t {
  kTid,
  kNtid = kTid + 3,
  kCtaid = kNtid + 3,
  kNctaid = kCtaid + 3,
  kLaneId = kNctaid + 3,
  kWarpId
};

uint32_t Component(Dim3 of, int64_t index) { return index == 0 ? of.x : index == 1 ? of.y : of.z; }

Outcome RunSpecial(Warp& warp, const Instruction& i, Lanes lanes) {
  const int64_t which = i.detail[0];
  Block& block = warp.block();
  const Dim3 size = block.config().block;
  uint32_t values[kWarpLanes];
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t thread = static_cast<uint32_t>(warp.index()) * kWarpLanes + lane;
    const Dim3 tid = {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
    uint32_t& value = values[lane];
    if (which < kNtid)
      value = Component(tid, which - kTid);
    else if (which < kCtaid)
      value = Component(size, which - kNtid);
    else if (which < kNctaid)
      value = Component(block.index(), which - kCtaid);
    else if (which < kLaneId)
      value = Component(block.config().grid, which - kNctaid);
    else
      value = which == kLaneId ? lane : static_cast<uint32_t>(warp.index());
  }
  StoreLanes(warp, i.operands[0], lanes, values);
  return Outcome::kDone;
}

Run BindSpecial(Instruction& i) {
  const std::string& name = i.operands[1].text;
  const std::pair<const char*, int64_t> families[] = {
      {"%tid", kTid}, {"%ntid", kNtid}, {"%ctaid", kCtaid}, {"%nctaid", kNctaid}};
  i.detail[0] = -1;
  for (const auto& [family, first] : families) {
    for (int64_t c = 0; c < 3; ++c) {
      if (name == std::string(family) + "." + "xyz"[c]) i.detail[0] = first + c;
    }
  }
  if (name == "%laneid") i.detail[0] = kLaneId;
  if (name == "%warpid") i.detail[0] = kWarpId;
  return i.detail[0] >= 0 && i.operands[0].bytes == 4 ? RunSpecial : nullptr;
}

// mov.b32 {a, b}, d and mov.b32 d, {a, b}: the parts side by side, the first in the low bits.
template <bool kPacks>
Outcome RunPack(Warp& warp, const Instruction& i, Lanes lanes) {
  const Operand& whole = i.operands[kPacks ? 0 : 1];
  const auto& parts = i.operands[kPacks ? 1 : 0].elements;
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    uint8_t* all = warp.Row<uint8_t>(whole) + lane * whole.bytes;
    for (const Operand& part : parts) {
      const size_t bytes = whole.bytes / parts.size();
      if (part.kind != Operand::Kind::kSink) {
        uint8_t* one = warp.Row<uint8_t>(part) + lane * bytes;
        std::memcpy(kPacks ? all : one, kPacks ? one : all, bytes);
      }
      all += bytes;
    }
  }
  return Outcome::kDone;
}

Run BindPack(Kernel& kernel, Instruction& i) {
  const bool packs = i.operands[1].kind == Operand::Kind::kVector;
  const Operand& whole = i.operands[packs ? 0 : 1];
  auto& parts = i.operands[packs ? 1 : 0].elements;
  if (whole.kind != Operand::Kind::kRow || parts.empty()) return nullptr;
  const auto bytes = static_cast<uint8_t>(whole.bytes / parts.size());
  for (Operand& part : parts) {
    const bool is_free = !packs && part.kind == Operand::Kind::kSink;
    if (!is_free && !BindSource(kernel, part, bytes)) return nullptr;
  }
  return packs ? RunPack<true> : RunPack<false>;
}

Run BindMove(Kernel& kernel, Instruction& i) {
  if (i.operands.size() != 2) return nullptr;
  Operand& from = i.operands[1];
  if (from.kind == Operand::Kind::kSpecial) return BindSpecial(i);
  if (from.kind == Operand::Kind::kSymbol) from.kind = Operand::Kind::kImmediate;
  if (from.kind == Operand::Kind::kVector || i.operands[0].kind == Operand::Kind::kVector) {
    return BindPack(kernel, i);
  }
  const bool sets = i.Has("pred") && from.kind == Operand::Kind::kImmediate;
  return sets ? RunSetPredicate : nullptr;
}

}  // namespace

std::string NameOf(const Instruction& instruction) {
  std::string name = instruction.opcode;
  for (const std::string& modifier : instruction.modifiers) name += "." + modifier;
  return name;
}

Run LaneTable::Bind(Kernel& kernel, Instruction& instruction) const {
  const auto found = entries_.find(NameOf(instruction));
  if (found == entries_.end()) return nullptr;
  const auto& widths = found->second.widths;
  if (instruction.operands.size() != widths.size()) return nullptr;
  for (size_t i = 0; i < widths.size(); ++i) {
    Operand& operand = instruction.operands[i];
    const bool fits = widths[i] == 0 ? operand.kind == Operand::Kind::kPredicate
                      : i == 0 ? operand.kind == Operand::Kind::kRow && operand.bytes == widths[i]
                               : BindSource(kernel, operand, widths[i]);
    if (!fits) return nullptr;
  }
  return found->second.run;
}

Run BindArithmetic(Kernel& kernel, Instruction& instruction) {
  static const LaneTable table = MakeTable();
  if (instruction.opcode == "cvt") return BindConversion(kernel, instruction);
  if (instruction.opcode == "mov") {
    if (const Run run = BindMove(kernel, instruction); run != nullptr) return run;
  }
  return table.Bind(kernel, instruction);
}

}  // namespace heddle::ptx
