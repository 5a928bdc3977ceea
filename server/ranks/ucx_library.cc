#include "server/ranks/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "base/message.h"

namespace heddle::server {
namespace {

absl::StatusOr<UcxLibrary> OpenUcx() {
  constexpr const char* kFile = "libucp.so.0";
  // UCX would handle signals of crashes, and watch the process's memory, which only helps devices
  // that register it. Its constructor reads these.
  setenv("UCX_HANDLE_ERRORS", "none", /*overwrite=*/0);
  setenv("UCX_ERROR_SIGNALS", "", /*overwrite=*/0);
  setenv("UCX_MEM_EVENTS", "n", /*overwrite=*/0);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", /*overwrite=*/0);
  setenv("UCX_LOG_LEVEL", "fatal", /*overwrite=*/0);  // errors are reported by their callers
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(base::StrCat(
        "ranks on other machines need UCX (Debian package libucx0), which is not here: ",
        dlerror()));
  }
  UcxLibrary ucx{};
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function =
        reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("ucp_config_read", &ucx.config_read);
  find("ucp_config_modify", &ucx.config_modify);
  find("ucp_config_release", &ucx.config_release);
  find("ucp_init_version", &ucx.init_version);
  find("ucp_cleanup", &ucx.cleanup);
  find("ucp_worker_create", &ucx.worker_create);
  find("ucp_worker_destroy", &ucx.worker_destroy);
  find("ucp_worker_get_address", &ucx.worker_get_address);
  find("ucp_worker_release_address", &ucx.worker_release_address);
  find("ucp_worker_progress", &ucx.worker_progress);
  find("ucp_worker_flush_nbx", &ucx.worker_flush);
  find("ucp_ep_create", &ucx.ep_create);
  find("ucp_ep_close_nbx", &ucx.ep_close);
  find("ucp_tag_send_nbx", &ucx.tag_send);
  find("ucp_tag_recv_nbx", &ucx.tag_recv);
  find("ucp_tag_recv_request_test", &ucx.tag_recv_test);
  find("ucp_request_check_status", &ucx.request_check_status);
  find("ucp_request_cancel", &ucx.request_cancel);
  find("ucp_request_free", &ucx.request_free);
  find("ucs_status_string", &ucx.status_string);
  find("ucp_get_version_string", &ucx.version_string);
  if (missing.empty()) return ucx;
  return absl::UnimplementedError(
      base::StrCat(kFile, " has no function ", missing, "; UCX 1.13 or later is needed"));
}

}  // namespace

absl::StatusOr<const UcxLibrary*> LoadUcx() {
  static const absl::StatusOr<UcxLibrary> library = OpenUcx();
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace heddle::server
