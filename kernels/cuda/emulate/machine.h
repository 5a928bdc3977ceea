// The machine that the emulated runtime finds itself on: what tests of faults and of bad machines
// change.
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda::emulate {

struct Machine {
  int32_t driver = 13000;  // as cudaDriverGetVersion says it; 0: no driver
  int32_t device_count = 1;
  int32_t compute_major = 9;
  int32_t compute_minor = 0;
  bool has_code = true;  // the program, for that
  int64_t total_bytes = int64_t{8} << 30;
  int64_t taken_bytes = 0;       // by other processes
  bool has_library = false;      // in cuBLASLt's place
  bool scales_rows = true;       // the library, in FP8 products; and tiles
  bool has_codes = true;         // it finds an algorithm for products of codes
  bool refuses_changes = false;  // of graphs
  bool refuses_graphs = false;
  // Launches that succeed; the next reads where it must not, and from then on every call fails.
  // Negative: none fails.
  int64_t launches_before_fault = -1;
  // Nothing that is enqueued happens before somebody waits for it, as on a device that is busy with
  // other things: what the host changes too early, or reads too early, shows.
  bool is_late = false;
};

// For all that happens from now on. Thread-safety: none, as all of the emulator.
void SetMachine(const Machine& machine);

// What was enqueued so far happens.
void CatchUp();

// Launches of graphs that were given other shapes or parameters, since SetMachine.
int64_t GraphChanges();

const Machine& CurrentMachine();

}  // namespace heddle::kernels::cuda::emulate
