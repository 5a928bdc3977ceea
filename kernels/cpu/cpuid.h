// Determines the instruction sets that this processor and operating system offer, and the level of
// our kernels that follows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace heddle::kernels::cpu {

// The levels that kernels are built for, in ascending order.
enum class Isa : uint8_t {
  kPortable,    // the compiler's baseline
  kAvx2,        // AVX2, FMA, F16C
  kAvx2Vnni,    // the same and AVX-VNNI: int8 dot products
  kAvx512Bw,    // AVX-512 F, BW, DQ, VL
  kAvx512,      // the same and VNNI
  kAvx512Bf16,  // the same and dot products of BF16
  kAmx,         // the same and tiles of BF16
};

struct CpuFeatures {
  bool avx2 = false;    // with FMA, F16C and the system's support for YMM state
  bool avx512 = false;  // F, BW, DQ, VL, with the system's support for ZMM state
  bool avx512_vnni = false;
  // Products of 512 bits have one unit, and are no faster than two of 256 bits at a higher clock.
  bool has_one_wide_unit = false;
  bool avx512_bf16 = false;
  bool avx_vnni = false;
  bool amx = false;  // tiles of BF16, with the system's permission to use them
};

// Asks the system for the state of tiles where the processor has them: Linux gives it to a process
// once and for all its threads, whose stacks for signals must then be larger (sysconf's
// _SC_MINSIGSTKSZ).
CpuFeatures DetectCpuFeatures();

// CpuFeatures::has_one_wide_unit of the processor with this name, as CPUID gives it.
bool HasOneWideUnit(std::string_view brand);

// A list such as "avx2, avx512, avx512_vnni", or "nothing beyond the baseline".
std::string Describe(const CpuFeatures& features);

// `name` is auto or a level's. INVALID_ARGUMENT, with a list of the levels, if it is unknown or
// beyond `features`.
absl::StatusOr<Isa> ResolveIsa(std::string_view name, const CpuFeatures& features);

const char* Name(Isa isa);

}  // namespace heddle::kernels::cpu
