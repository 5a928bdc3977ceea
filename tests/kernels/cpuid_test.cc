#include "kernels/cpu/cpuid.h"

#include <algorithm>
#include <string>

#include "catch2/catch.hpp"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/device.h"

namespace heddle::kernels::cpu {
namespace {

CpuFeatures Haswell() {
  CpuFeatures features;
  features.avx2 = true;
  return features;
}

CpuFeatures Zen5() {
  CpuFeatures features = Haswell();
  features.avx512 = features.avx512_vnni = features.avx512_bf16 = features.avx_vnni = true;
  return features;
}

CpuFeatures SapphireRapids() {
  CpuFeatures features = Zen5();
  features.amx = true;
  return features;
}

TEST_CASE("auto takes the best level that the machine has", "[kernels][unit]") {
  CHECK(ResolveIsa("auto", CpuFeatures()).value() == Isa::kPortable);
  CHECK(ResolveIsa("auto", Haswell()).value() == Isa::kAvx2);
  CHECK(ResolveIsa("auto", Zen5()).value() == Isa::kAvx512Bf16);
  CHECK(ResolveIsa("auto", SapphireRapids()).value() == Isa::kAmx);
  CHECK(ResolveIsa("avx512_bf16", SapphireRapids()).value() == Isa::kAvx512Bf16);
  CHECK(absl::IsInvalidArgument(ResolveIsa("amx", Zen5()).status()));
  CpuFeatures ice_lake = Zen5();
  ice_lake.avx512_bf16 = false;
  CHECK(ResolveIsa("auto", ice_lake).value() == Isa::kAvx512);
  CHECK(absl::IsInvalidArgument(ResolveIsa("avx512_bf16", ice_lake).status()));
  CpuFeatures alder_lake = Haswell();
  alder_lake.avx_vnni = true;
  CHECK(ResolveIsa("auto", alder_lake).value() == Isa::kAvx2Vnni);
  CpuFeatures skylake = Haswell();
  skylake.avx512 = true;  // without VNNI
  CHECK(ResolveIsa("auto", skylake).value() == Isa::kAvx512Bw);
  CHECK(absl::IsInvalidArgument(ResolveIsa("avx512", skylake).status()));
  skylake.has_one_wide_unit = true;
  CHECK(ResolveIsa("auto", skylake).value() == Isa::kAvx2);
  CHECK(ResolveIsa("avx512_bw", skylake).value() == Isa::kAvx512Bw);
  skylake.avx512_vnni = true;
  CHECK(ResolveIsa("auto", skylake).value() == Isa::kAvx512);
}

TEST_CASE("Names of processors tell how many units multiply 512 bits", "[kernels][unit]") {
  CHECK(HasOneWideUnit("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz"));
  CHECK(HasOneWideUnit("Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz"));
  CHECK(HasOneWideUnit("Intel(R) Xeon(R) Bronze 3106 CPU @ 1.70GHz"));
  CHECK(!HasOneWideUnit("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz"));
  CHECK(!HasOneWideUnit("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"));
  CHECK(!HasOneWideUnit("Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz"));
  CHECK(!HasOneWideUnit("Intel(R) Core(TM) i9-7900X CPU @ 3.30GHz"));
  CHECK(HasOneWideUnit("Intel(R) Core(TM) i3-8121U CPU @ 2.20GHz"));
  CHECK(HasOneWideUnit("Intel(R) Xeon(R) W-2104 CPU @ 3.20GHz"));
  CHECK(!HasOneWideUnit("Intel(R) Xeon(R) W-2145 CPU @ 3.70GHz"));
  CHECK(!HasOneWideUnit(""));
}

TEST_CASE("A level can be forced down but not beyond the machine", "[kernels][unit]") {
  CHECK(ResolveIsa("portable", Zen5()).value() == Isa::kPortable);
  CHECK(ResolveIsa("avx2", Zen5()).value() == Isa::kAvx2);
  absl::Status status = ResolveIsa("avx512", Haswell()).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()).find("which has avx2") != std::string::npos);
  CHECK(absl::IsInvalidArgument(ResolveIsa("sse9", Zen5()).status()));
}

TEST_CASE("A device says its level and threads, and refuses impossible options",
          "[kernels][unit]") {
  auto device = CreateCpuDevice({std::min(2, FindUsableCpus().num_cpus), "portable", false});
  REQUIRE(device.ok());
  CHECK((*device)->description().find("portable") != std::string::npos);
  CHECK((*device)->description().find(" thread") != std::string::npos);
  CHECK((*device)->description().find("WARNING") == std::string::npos);
  const int32_t cpus = FindUsableCpus().num_cpus;
  auto crowded = CreateCpuDevice({cpus + 1, "portable", false});
  REQUIRE(crowded.ok());
  CHECK((*crowded)->description().find("more than the " + std::to_string(cpus) + " CPU") !=
        std::string::npos);
  CHECK(absl::IsInvalidArgument(CreateCpuDevice({-1, "auto", false}).status()));
  CHECK(absl::IsInvalidArgument(CreateCpuDevice({1, "mmx", false}).status()));
  auto buffer = (*device)->Allocate(int64_t{1} << 50);
  CHECK(absl::IsResourceExhausted(buffer.status()));
  auto small = (*device)->Allocate(100);
  REQUIRE(small.ok());
  CHECK(reinterpret_cast<uintptr_t>((*small)->data()) % 64 == 0);
  CHECK(static_cast<char*>((*small)->data())[99] == 0);
}

}  // namespace
}  // namespace heddle::kernels::cpu
