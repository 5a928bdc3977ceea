// The functions of libucp, loaded at run time.
#pragma once

#include <ucp/api/ucp.h>

#include "absl/status/statusor.h"

namespace heddle::server {

struct UcxLibrary {
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_flush_nbx) worker_flush;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close;
  decltype(&ucp_tag_send_nbx) tag_send;
  decltype(&ucp_tag_recv_nbx) tag_recv;
  decltype(&ucp_tag_recv_request_test) tag_recv_test;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucp_request_cancel) request_cancel;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;
  decltype(&ucp_get_version_string) version_string;
};

// UNIMPLEMENTED if it is not installed. It is loaded once, and never closed.
absl::StatusOr<const UcxLibrary*> LoadUcx();

}  // namespace heddle::server
