// cvt. Sections of the ISA: 9.7.9.21 "cvt", 5.2.3 "Alternate Floating-Point Data Formats".
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/small_floats.h"

namespace heddle::ptx {
namespace {

// The low bytes of a register that may be wider than the type.
template <typename T>
T ReadNarrow(Warp& warp, const Operand& from, int lane) {
  T value;
  std::memcpy(&value, warp.Row<uint8_t>(from) + static_cast<size_t>(lane) * from.bytes, sizeof(T));
  return value;
}

// Signs, or zeros, fill the rest of a wider register.
template <typename T>
void WriteNarrow(Warp& warp, const Operand& to, int lane, T value) {
  int64_t wide = 0;
  if constexpr (std::is_integral_v<T>) {
    wide = static_cast<int64_t>(value);
  } else {
    std::memcpy(&wide, &value, sizeof(T));
  }
  std::memcpy(warp.Row<uint8_t>(to) + static_cast<size_t>(lane) * to.bytes, &wide, to.bytes);
}

template <typename D, typename S, typename F>
Outcome RunConvert(Warp& warp, const Instruction& i, Lanes lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const S from = ReadNarrow<S>(warp, i.operands[1], lane);
    WriteNarrow<D>(warp, i.operands[0], lane, static_cast<D>(F{}(from)));
  }
  return Outcome::kDone;
}

// Beyond the range: its end; NaN: 0.
template <typename D, typename S>
D ToInteger(S rounded) {
  if (std::isnan(rounded)) return 0;
  constexpr D kLeast = std::numeric_limits<D>::min(), kMost = std::numeric_limits<D>::max();
  // 2^31 and such: exact, where kMost may not be.
  const S past = std::ldexp(S{1}, std::numeric_limits<D>::digits);
  if (rounded >= past) return kMost;
  return rounded < static_cast<S>(kLeast) ? kLeast : static_cast<D>(rounded);
}

float Saturate(float x) { return std::isnan(x) ? 0.0f : std::clamp(x, 0.0f, 1.0f); }

uint16_t ToHalf(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

// Values of E4M3's codes 0 to 0x7E; 0x7F is NaN.
std::array<float, 127> ValuesOfE4M3() {
  std::array<float, 127> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    values[static_cast<size_t>(code)] =
        exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                      : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return values;
}

// .satfinite: beyond 448 is 448. To nearest, ties to the even code.
uint8_t ToE4M3(float x) {
  static const std::array<float, 127> values = ValuesOfE4M3();
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7F;
  const float size = std::fabs(x);
  const auto above = std::lower_bound(values.begin(), values.end(), size);
  if (above == values.end()) return sign | 0x7E;
  auto code = static_cast<size_t>(above - values.begin());
  if (*above != size) {
    const float middle = (values[code] + values[code - 1]) / 2;
    if (size < middle || (size == middle && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(sign | code);
}

uint16_t HalfOfE4M3(uint8_t code) {
  static const std::array<float, 127> values = ValuesOfE4M3();
  if ((code & 0x7F) == 0x7F) return 0x7FFF;
  const uint16_t sign = (code & 0x80) != 0 ? 0x8000 : 0;
  return sign | ToHalf(values[code & 0x7F]);
}

// Two at once: the first source is the high half.
LaneTable PackedTable() {
  LaneTable t;
  t.Add<uint32_t, float, float>("cvt.rn.bf16x2.f32", [](float high, float low) {
    return static_cast<uint32_t>(BF16OfFloat(high)) << 16 | BF16OfFloat(low);
  });
  t.Add<uint32_t, float, float>("cvt.rn.f16x2.f32", [](float high, float low) {
    return static_cast<uint32_t>(ToHalf(high)) << 16 | ToHalf(low);
  });
  t.Add<uint16_t, float, float>("cvt.rn.satfinite.e4m3x2.f32", [](float high, float low) {
    return ToE4M3(high) << 8 | ToE4M3(low);
  });
  t.Add<uint32_t, uint16_t>("cvt.rn.f16x2.e4m3x2", [](uint16_t codes) {
    return static_cast<uint32_t>(HalfOfE4M3(static_cast<uint8_t>(codes >> 8))) << 16 |
           HalfOfE4M3(static_cast<uint8_t>(codes));
  });
  t.Add<uint16_t, float>("cvt.rn.f16.f32", [](float x) { return ToHalf(x); });
  t.Add<uint16_t, float>("cvt.rn.bf16.f32", [](float x) { return BF16OfFloat(x); });
  t.Add<float, uint16_t>("cvt.f32.f16", [](uint16_t bits) { return FloatOfF16(bits); });
  t.Add<float, uint16_t>("cvt.f32.bf16", [](uint16_t bits) { return FloatOfBF16(bits); });
  return t;
}

using Conversions = std::map<std::string, Run, std::less<>>;

template <typename S, typename... D>
void AddIntegers(Conversions& t, const std::string& from,
                 const std::array<const char*, sizeof...(D)>& to) {
  size_t i = 0;
  (
      [&] {
        t["cvt." + std::string(to[i++]) + "." + from] =
            RunConvert<D, S, decltype([](S x) { return x; })>;
      }(),
      ...);
}

template <typename S>
void AddInteger(Conversions& t, const std::string& from) {
  AddIntegers<S, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(
      t, from, {"s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"});
  t["cvt.rn.f32." + from] =
      RunConvert<float, S, decltype([](S x) { return static_cast<float>(x); })>;
  t["cvt.rn.f64." + from] =
      RunConvert<double, S, decltype([](S x) { return static_cast<double>(x); })>;
}

template <typename D, typename S>
void AddToInteger(Conversions& t, const std::string& types) {
  t["cvt.rni." + types] =
      RunConvert<D, S, decltype([](S x) { return ToInteger<D>(std::nearbyint(x)); })>;
  t["cvt.rzi." + types] =
      RunConvert<D, S, decltype([](S x) { return ToInteger<D>(std::trunc(x)); })>;
  t["cvt.rmi." + types] =
      RunConvert<D, S, decltype([](S x) { return ToInteger<D>(std::floor(x)); })>;
  t["cvt.rpi." + types] =
      RunConvert<D, S, decltype([](S x) { return ToInteger<D>(std::ceil(x)); })>;
}

template <typename S>
void AddFloat(Conversions& t, const std::string& from) {
  AddToInteger<int32_t, S>(t, "s32." + from), AddToInteger<uint32_t, S>(t, "u32." + from);
  AddToInteger<int64_t, S>(t, "s64." + from), AddToInteger<uint64_t, S>(t, "u64." + from);
  const std::string same = from + "." + from;
  t["cvt.rni." + same] = RunConvert<S, S, decltype([](S x) { return std::nearbyint(x); })>;
  t["cvt.rzi." + same] = RunConvert<S, S, decltype([](S x) { return std::trunc(x); })>;
  t["cvt.rmi." + same] = RunConvert<S, S, decltype([](S x) { return std::floor(x); })>;
}

Conversions MakeConversions() {
  Conversions t;
  AddInteger<int8_t>(t, "s8"), AddInteger<uint8_t>(t, "u8");
  AddInteger<int16_t>(t, "s16"), AddInteger<uint16_t>(t, "u16");
  AddInteger<int32_t>(t, "s32"), AddInteger<uint32_t>(t, "u32");
  AddInteger<int64_t>(t, "s64"), AddInteger<uint64_t>(t, "u64");
  AddFloat<float>(t, "f32"), AddFloat<double>(t, "f64");
  t["cvt.sat.f32.f32"] = RunConvert<float, float, decltype([](float x) { return Saturate(x); })>;
  t["cvt.f64.f32"] = RunConvert<double, float, decltype([](float x) { return double{x}; })>;
  t["cvt.rn.f32.f64"] =
      RunConvert<float, double, decltype([](double x) { return static_cast<float>(x); })>;
  return t;
}

}  // namespace

Run BindConversion(Kernel& kernel, Instruction& instruction) {
  static const LaneTable packed = PackedTable();
  static const Conversions conversions = MakeConversions();
  if (const Run run = packed.Bind(kernel, instruction); run != nullptr) return run;
  const auto found = conversions.find(NameOf(instruction));
  if (found == conversions.end() || instruction.operands.size() != 2) return nullptr;
  if (instruction.operands[0].kind != Operand::Kind::kRow) return nullptr;
  Operand& from = instruction.operands[1];
  if (from.kind == Operand::Kind::kImmediate && !BindSource(kernel, from, 8)) return nullptr;
  return from.kind == Operand::Kind::kRow ? found->second : nullptr;
}

}  // namespace heddle::ptx
