#include "kernels/cuda/ranks/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace heddle::kernels::cuda {

std::string NcclVersionText(int32_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<NcclApi> NcclApi::Load(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(file, " cannot be loaded: ", dlerror()));
  }
  const char* missing = nullptr;
  const auto find = [&](auto* function, const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr && missing == nullptr) missing = name;
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  NcclApi api;
  find(&api.get_version, "ncclGetVersion");
  find(&api.get_unique_id, "ncclGetUniqueId");
  find(&api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(&api.comm_abort, "ncclCommAbort");
  find(&api.comm_get_async_error, "ncclCommGetAsyncError");
  find(&api.group_start, "ncclGroupStart");
  find(&api.group_end, "ncclGroupEnd");
  find(&api.all_gather, "ncclAllGather");
  find(&api.send, "ncclSend");
  find(&api.recv, "ncclRecv");
  find(&api.get_error_string, "ncclGetErrorString");
  find(&api.get_last_error, "ncclGetLastError");
  if (api.get_version == nullptr || api.get_version(&api.version) != kNcclSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(file, " does not say its version"));
  }
  // Before 2.9 a version was counted otherwise, in smaller numbers.
  if (api.version < kLeast) {
    return absl::FailedPreconditionError(absl::StrCat(
        file, " is ", api.version < 10000 ? "older than 2.9" : NcclVersionText(api.version),
        "; NCCL has to be ", NcclVersionText(kLeast), " or later"));
  }
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " (", NcclVersionText(api.version), ") lacks ", missing));
  }
  return api;
}

absl::Status NcclApi::ToStatus(NcclResult result, const char* call, NcclComm* comm) const {
  if (result == kNcclSuccess) return absl::OkStatus();
  const char* last = get_last_error(comm);
  return absl::UnavailableError(absl::StrCat(
      "NCCL ", NcclVersionText(version), ": ", call, ": ", get_error_string(result), " (", result,
      ")", last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last));
}

}  // namespace heddle::kernels::cuda
