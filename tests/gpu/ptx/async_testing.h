// Kernels on copies and products, for tests of the machine: what they read, what they write, and
// two tensor maps as parameters, as __grid_constant__ passes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/tensor_map.h"

namespace heddle::ptx::test {

struct alignas(kMapAlignment) AsyncParams {
  uint8_t maps[2][kMapBytes];
  uint64_t in, out;
};

// %rd1: in, %rd2: out, %rd3 and %rd4: the maps, %r1: thread, %r2: the dynamic shared memory "sm",
// which begins at a multiple of 1024. Free: %rd5 and up, %r3 and up, %f, %p.
inline std::string AsyncText(const std::string& body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
         ".visible .entry k(\n.param .align 64 .b8 k_param_0[320]\n)\n{\n"
         ".reg .pred %p<16>;\n.reg .b32 %r<64>;\n.reg .f32 %f<256>;\n.reg .b64 %rd<64>;\n"
         "ld.param.u64 %rd1, [k_param_0+256];\nld.param.u64 %rd2, [k_param_0+264];\n"
         "mov.b64 %rd5, k_param_0;\ncvta.param.u64 %rd3, %rd5;\nadd.s64 %rd4, %rd3, 128;\n"
         "mov.u32 %r1, %tid.x;\nmov.u32 %r2, sm;\n" +
         body + "\nret;\n}\n";
}

struct AsyncRun {
  std::vector<uint8_t> in;
  std::vector<uint8_t> out = std::vector<uint8_t>(4096);
  // Maps over `in`, whose address is filled in.
  std::vector<TiledMapArguments> maps;
  uint32_t threads = 32;
  int32_t shared_bytes = 32 << 10;
  Counts counts;

  template <typename T>
  T Out(size_t i) const {
    T value;
    std::memcpy(&value, out.data() + i * sizeof(T), sizeof(T));
    return value;
  }

  absl::Status Run(const std::string& body, bool late) {
    auto module = ParseModule(AsyncText(body));
    if (!module.ok()) return module.status();
    Machine machine({.late = late});
    void* from = machine.Allocate(static_cast<int64_t>(in.size()));
    if (!in.empty()) std::memcpy(from, in.data(), in.size());
    machine.AddRange(out.data(), static_cast<int64_t>(out.size()));
    AsyncParams params = {};
    params.in = reinterpret_cast<uint64_t>(from);
    params.out = reinterpret_cast<uint64_t>(out.data());
    for (size_t i = 0; i < maps.size(); ++i) {
      std::string error;
      maps[i].address += params.in;
      const bool encoded = EncodeTiledMap(maps[i], params.maps[i], &error);
      maps[i].address -= params.in;
      if (!encoded) return absl::InvalidArgumentError(error);
    }
    const LaunchConfig config = {{1, 1, 1}, {threads, 1, 1}, shared_bytes};
    const absl::Status status = machine.Launch(module->kernels.begin()->second, config, &params);
    counts = machine.counts()["k"];
    return status;
  }
};

// The message of the fault that the kernel ends with; of none otherwise, which tests do not expect.
inline std::string Failure(AsyncRun& run, const std::string& body, bool late = true) {
  const absl::Status status = run.Run(body, late);
  return absl::IsAborted(status) ? std::string(status.message()) : "no fault: " + status.ToString();
}

// Thread 0 initialises the barrier at sm, all threads see it. %p1: the thread is thread 0.
inline std::string InitBarrier(int count) {
  return "setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], " +
         std::to_string(count) +
         ";\n@%p1 fence.mbarrier_init.release.cluster;\n@%p1 fence.proxy.async.shared::cta;\n"
         "bar.sync 0;\n";
}

// All threads wait for the end of the barrier's phase of this parity.
inline std::string Wait(int parity, const std::string& label = "WAIT") {
  return label + ":\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], " +
         std::to_string(parity) + ";\n@!%p2 bra " + label + ";\n";
}

// Thread 0 announces `bytes` and asks for a copy of as many from `in` + `from` to sm + `to`.
inline std::string CopyIn(int from, int to, int bytes) {
  return "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " + std::to_string(bytes) +
         ";\nadd.s64 %rd6, %rd1, " + std::to_string(from) + ";\nadd.s32 %r3, %r2, " +
         std::to_string(to) +
         ";\n@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
         "[%rd6], " +
         std::to_string(bytes) + ", [%r2];\n";
}

}  // namespace heddle::ptx::test
