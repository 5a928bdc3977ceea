// Kernels written as PTX, for tests of the machine.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/ptx/machine.h"

namespace heddle::ptx::test {

// A kernel of one parameter, the address of what it may read and write, in %rd1. Registers:
// %rd<64>, %r<64>, %f<64>, %fd<16>, %rs<32>, %p<16>.
inline std::string KernelText(const std::string& body, const std::string& declarations = "") {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n" + declarations +
         "\n.visible .entry k(\n .param .u64 k_param_0\n)\n{\n"
         ".reg .pred %p<16>;\n.reg .b16 %rs<32>;\n.reg .b32 %r<64>;\n.reg .f32 %f<64>;\n"
         ".reg .b64 %rd<64>;\n.reg .f64 %fd<16>;\n"
         "ld.param.u64 %rd1, [k_param_0];\n" +
         body + "\nret;\n}\n";
}

// Runs KernelText over `memory`; the status says what went wrong.
inline absl::Status RunBody(const std::string& body, std::vector<uint32_t>& memory,
                            LaunchConfig config = {{1, 1, 1}, {32, 1, 1}, 0},
                            const std::string& declarations = "", MachineOptions options = {},
                            Counts* counts = nullptr) {
  auto module = ParseModule(KernelText(body, declarations));
  if (!module.ok()) return module.status();
  Machine machine(options);
  const size_t bytes = memory.size() * sizeof(uint32_t);
  void* data = machine.Allocate(static_cast<int64_t>(bytes));
  std::memcpy(data, memory.data(), bytes);
  for (const auto& [name, variable] : module->variables) {
    machine.AddRange(variable.data.get(), variable.bytes);
  }
  absl::Status status = machine.Launch(module->kernels.begin()->second, config, &data);
  std::memcpy(memory.data(), data, bytes);
  if (counts != nullptr) *counts = machine.counts()["k"];
  return status;
}

// Every thread's address: %rd2 = %rd1 + 4 * thread, %r1 = thread.
inline const char* kOwnWord =
    "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd2, %rd1, %rd3;\n";

}  // namespace heddle::ptx::test
