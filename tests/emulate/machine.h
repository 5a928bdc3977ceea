// The machine that the emulated runtime presents, which tests of faults and of bad machines change.
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda {
struct LaunchQueue;
}

namespace heddle::kernels::cuda::emulate {

struct Machine {
  int32_t driver = 13000;  // cudaDriverGetVersion's number; 0: no driver
  int32_t device_count = 1;
  int32_t compute_major = 9;
  int32_t compute_minor = 0;
  bool has_code = true;  // the program has code for that
  int64_t total_bytes = int64_t{8} << 30;
  bool has_peer_access = true;       // devices can read each other's memory
  int32_t unreachable_ordinal = -1;  // all but this one can; negative: all
  bool opens_peers = true;           // and the driver lets them
  int64_t taken_bytes = 0;           // used by other processes
  int64_t pinned_bytes = -1;         // that the host locks for all devices; negative: any number
  bool has_library = false;          // in place of cuBLASLt
  bool scales_rows = true;           // the library scales rows and tiles in FP8 products
  bool has_products = true;          // the library has an algorithm for products of BF16
  bool has_codes = true;             // the library has an algorithm for products of codes
  bool refuses_changes = false;      // drivers refuse changes of graphs
  bool refuses_graphs = false;
  // Launches that succeed; the next one reads invalid memory, and from then on every call fails.
  // Negative: none fails.
  int64_t launches_before_fault = -1;
  int32_t faulty_ordinal = -1;  // the device of which this is true; negative: each
  // Enqueued work happens only when a thread waits for it, as on a busy device: data that the host
  // changes or reads too early then shows in the results.
  bool is_late = false;
  int32_t first_lane = 1;  // the lane whose launches a tape makes as early as it allows
};

// Applies to all that follows. REQUIRES: no other thread uses a device meanwhile.
void SetMachine(const Machine& machine);

// Performs all enqueued work of all devices; REQUIRES as above. The other one: of the queue's.
void CatchUp();
void CatchUp(const LaunchQueue* queue);

// The number of graph launches with changed shapes or parameters since SetMachine.
int64_t GraphChanges();

// The number of graphs launched since SetMachine.
int64_t GraphLaunches();
// The number of kernels launched since SetMachine, those of graphs included.
int64_t Launches();
// Page-locked memory that this process holds now.
int64_t PinnedBytes();
// The number of launches on lane 1 of any device since SetMachine.
int64_t SecondLaneLaunches();
// The number of tiles that bulk copies have moved in this process.
int64_t TileCopies();

const Machine& CurrentMachine();

}  // namespace heddle::kernels::cuda::emulate
