#include "kernels/cpu/cpuid.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "absl/strings/str_cat.h"

namespace heddle::kernels::cpu {
namespace {

// The levels in ascending order.
constexpr Isa kLevels[] = {Isa::kPortable, Isa::kAvx2,       Isa::kAvx2Vnni, Isa::kAvx512Bw,
                           Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAmx};

bool Has(const CpuFeatures& features, Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return features.avx2;
    case Isa::kAvx2Vnni:
      return features.avx2 && features.avx_vnni;
    case Isa::kAvx512Bw:
      return features.avx2 && features.avx512;
    case Isa::kAvx512:
      return Has(features, Isa::kAvx512Bw) && features.avx512_vnni;
    case Isa::kAvx512Bf16:
      return Has(features, Isa::kAvx512) && features.avx512_bf16;
    case Isa::kAmx:
      return Has(features, Isa::kAvx512Bf16) && features.amx;
  }
  return false;
}

#if defined(__x86_64__)
bool Bit(uint32_t word, int bit) { return ((word >> bit) & 1) != 0; }

// Extended control register 0: which register states the operating system saves.
uint64_t ReadXcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr uint64_t kYmmState = 0x6;   // SSE and AVX
constexpr uint64_t kZmmState = 0xe6;  // and opmask, both halves of ZMM
constexpr uint64_t kTileState = 0x60000;

// The processor's name, as leaves 0x80000002 to 0x80000004 have it.
std::string BrandOfProcessor() {
  std::array<uint32_t, 12> words = {};
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t* leaf = words.data() + size_t{4} * i;
    if (!__get_cpuid(0x80000002 + i, leaf, leaf + 1, leaf + 2, leaf + 3)) return "";
  }
  std::string brand(sizeof(words), '\0');
  std::memcpy(brand.data(), words.data(), sizeof(words));
  return brand.substr(0, brand.find('\0'));
}

// Whether the system lets this process use tiles. A container's filter of system calls may not.
bool RequestTiles() {
#if defined(__linux__)
  constexpr int64_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int64_t kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

// Processors without VNNI; CPUID does not say how many units there are. Source: Intel's product
// specifications ("# of AVX-512 FMA Units").
bool HasOneWideUnit(std::string_view brand) {
  for (const std::string_view series : {"Bronze 31", "Silver 41", "Gold 51", "W-210", "i3-8121U"}) {
    if (brand.find(series) != brand.npos) return brand.find("Gold 5122") == brand.npos;
  }
  return false;
}

// Bit numbers are from Intel SDM volume 2, CPUID leaves 1, 7.0 and 7.1.
CpuFeatures DetectCpuFeatures() {
  CpuFeatures features;
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !Bit(c, 27)) return features;  // OSXSAVE
  bool fma_f16c = Bit(c, 12) && Bit(c, 29);
  uint64_t state = ReadXcr0();
  uint32_t max_subleaf = 0;
  if (!__get_cpuid_count(7, 0, &max_subleaf, &b, &c, &d)) return features;
  bool ymm = (state & kYmmState) == kYmmState;
  bool zmm = (state & kZmmState) == kZmmState;
  features.avx2 = ymm && fma_f16c && Bit(b, 5);
  features.avx512 = zmm && Bit(b, 16) && Bit(b, 17) && Bit(b, 30) && Bit(b, 31);
  features.avx512_vnni = features.avx512 && Bit(c, 11);
  features.has_one_wide_unit = features.avx512 && HasOneWideUnit(BrandOfProcessor());
  const bool tiles = (state & kTileState) == kTileState && Bit(d, 22) && Bit(d, 24);
  features.amx = tiles && RequestTiles();
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    features.avx_vnni = features.avx2 && Bit(a, 4);
    features.avx512_bf16 = features.avx512 && Bit(a, 5);
  }
#endif
  return features;
}

std::string Describe(const CpuFeatures& features) {
  std::string text;
  auto add = [&](bool has, const char* name) {
    if (has) absl::StrAppend(&text, text.empty() ? "" : ", ", name);
  };
  add(features.avx2, "avx2");
  add(features.avx_vnni, "avx_vnni");
  add(features.avx512, features.has_one_wide_unit ? "avx512 (one unit)" : "avx512");
  add(features.avx512_vnni, "avx512_vnni");
  add(features.avx512_bf16, "avx512_bf16");
  add(features.amx, "amx");
  return text.empty() ? "nothing beyond the baseline" : text;
}

absl::StatusOr<Isa> ResolveIsa(std::string_view name, const CpuFeatures& features) {
  if (name == "auto") {
    Isa best = Isa::kPortable;
    for (Isa isa : kLevels) {
      const bool is_slow = isa == Isa::kAvx512Bw && features.has_one_wide_unit;
      if (Has(features, isa) && !is_slow) best = isa;
    }
    return best;
  }
  for (Isa isa : kLevels) {
    if (name != Name(isa)) continue;
    if (Has(features, isa)) return isa;
    return absl::InvalidArgumentError(absl::StrCat(
        "isa '", std::string(name), "' is beyond this machine, which has ", Describe(features),
        isa >= Isa::kAvx512Bw
            ? " (avx512_bw here means AVX-512 F, BW, DQ and VL, and avx512 these and VNNI)"
            : ""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("isa '", std::string(name),
                   "' is unknown: auto, portable, avx2, avx2_vnni, avx512_bw, avx512, "
                   "avx512_bf16 or amx"));
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx2Vnni:
      return "avx2_vnni";
    case Isa::kAvx512Bw:
      return "avx512_bw";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

}  // namespace heddle::kernels::cpu
