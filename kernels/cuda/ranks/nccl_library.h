// NVIDIA's NCCL, loaded at run time: what moves bytes between GPUs of different machines by RDMA or
// sockets, and between those of a machine by whatever joins them. Optional: without it what ranks
// exchange passes through the host (host_relay.h).
//
// The declarations are our own, of the C interface of NCCL 2.22 (kLeast) to 2.32 (nccl.h): no
// header of NCCL is needed to build. NcclConfig is that of 2.26, for a library of 2.18 and later:
// of its last field 2.22 to 2.25 take nothing, 2.26 takes what is there, and later ones ask the
// version. Thread-safety: the functions are NCCL's; this is a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::kernels::cuda {

// The file that is loaded: NCCL's, and on the emulated machine that of tests.
const char* NcclFile();

struct NcclComm;  // *ncclComm_t

struct NcclId {  // ncclUniqueId
  char bytes[128];
};

using NcclResult = int;  // ncclResult_t
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclRemoteError = 6;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;  // ncclDataType_t

struct NcclConfig {  // ncclConfig_t
  static constexpr int kUndefined = -2147483647 - 1;

  size_t size = sizeof(NcclConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
};
static_assert(sizeof(NcclConfig) == 48 && offsetof(NcclConfig, blocking) == 16 &&
              offsetof(NcclConfig, max_ctas) == 28 && offsetof(NcclConfig, traffic_class) == 44);

struct NcclApi {
  // Versions as NCCL counts them: 22809 is 2.28.9. From this one on several communicators are
  // aborted at the same time by calls in a group.
  static constexpr int32_t kLeast = 22200;

  // NOT_FOUND without the file; FAILED_PRECONDITION for an older version than kLeast, or a library
  // that lacks a function: the message says what is missing.
  static absl::StatusOr<NcclApi> Load(const char* file = NcclFile());

  int32_t version = 0;
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm** comm, int world, NcclId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_abort)(NcclComm* comm) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm* comm, NcclResult* error) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  // `stream` is a cudaStream_t; counts are of elements of `type`.
  NcclResult (*all_gather)(const void* part, void* whole, size_t count, int type, NcclComm* comm,
                           void* stream) = nullptr;
  NcclResult (*send)(const void* data, size_t count, int type, int peer, NcclComm* comm,
                     void* stream) = nullptr;
  NcclResult (*recv)(void* data, size_t count, int type, int peer, NcclComm* comm,
                     void* stream) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(NcclComm* comm) = nullptr;

  // UNAVAILABLE, with NCCL's own words; `comm` may be null.
  absl::Status ToStatus(NcclResult result, const char* call, NcclComm* comm) const;
};

// "2.28.9"
std::string NcclVersionText(int32_t version);

}  // namespace heddle::kernels::cuda
