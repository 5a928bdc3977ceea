#include "server/ranks/ucx_mesh.h"

#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "kernels/await.h"
#include "server/ranks/mesh_communicator.h"

namespace heddle::server {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Communicator;

// A waiter looks at the devices so often without a pause, then gives its processor to others
// between two looks, and after some milliseconds sleeps between them. It counts by time because on
// a busy machine each yield may take milliseconds.
constexpr int kSpins = 300;
constexpr std::chrono::milliseconds kYielding{3};
constexpr std::chrono::microseconds kNap{50};

// A transfer may fail before UCX tells whose link has broken; so long is waited for the name.
constexpr std::chrono::milliseconds kNaming{200};

absl::Status UcxError(const UcxLibrary& ucx, const char* what, ucs_status_t status) {
  return absl::InternalError(base::StrCat("UCX: ", what, ": ", ucx.status_string(status)));
}

}  // namespace

absl::Status UcxMesh::Open() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError(ucx_, "its configuration cannot be read", status);
  // A message leaves the sender whether or not the receiver asks for it yet: stages of a pipeline
  // send to each other in a ring.
  status = ucx_.config_modify(config, "RNDV_THRESH", "inf");
  if (status == UCS_OK && loopback_only_) {
    status = ucx_.config_modify(config, "NET_DEVICES", "lo");
    // GPUs may use NCCL beside it, which listens, too.
    setenv("NCCL_SOCKET_IFNAME", "=lo", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  if (status == UCS_OK) {
    status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  }
  ucx_.config_release(config);
  if (status != UCS_OK) return UcxError(ucx_, "no device for links between ranks", status);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_.worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) return UcxError(ucx_, "no worker", status);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return UcxError(ucx_, "no address", status);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucx_.worker_release_address(worker_, address);
  return absl::OkStatus();
}

UcxMesh::~UcxMesh() {
  Abort(absl::CancelledError("the mesh of ranks is closed"));
  std::vector<void*> closing = std::move(given_up_);
  for (std::vector<void*>& sends : sends_) {
    closing.insert(closing.end(), sends.begin(), sends.end());
  }
  for (Link& link : links_) {
    for (const Link::Inbox& inbox : link.inboxes) {
      if (UCS_PTR_IS_PTR(inbox.receiving)) closing.push_back(inbox.receiving);
    }
  }
  for (void* request : closing) ucx_.request_cancel(worker_, request);
  for (Link& link : links_) {
    if (link.endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucx_.ep_close(link.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const auto end = Clock::now() + std::chrono::seconds(1);
  for (void* request : closing) {
    while (ucx_.request_check_status(request) == UCS_INPROGRESS && Clock::now() < end) {
      ucx_.worker_progress(worker_);
    }
    ucx_.request_free(request);
  }
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
}

absl::Status UcxMesh::Connect(const std::vector<Peer>& peers, int32_t own, uint64_t key) {
  HEDDLE_CHECK(links_.empty(), "a mesh is connected once");
  key_ = key;
  own_ = own;
  links_ = std::vector<Link>(peers.size());
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    Link& link = links_[rank];
    link.name = peers[rank].name;
    link.mesh = this;
    if (static_cast<int32_t>(rank) == own) continue;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(peers[rank].address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {.cb = OnBroken, .arg = &link};
    const ucs_status_t status = ucx_.ep_create(worker_, &params, &link.endpoint);
    if (status != UCS_OK) {
      link.endpoint = nullptr;
      return UcxError(ucx_, base::StrCat("no way to ", link.name).c_str(), status);
    }
  }
  return absl::OkStatus();
}

void UcxMesh::OnBroken(void* link, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  const auto* broken = static_cast<const Link*>(link);
  broken->mesh->Broke(*broken, status);
}

void UcxMesh::Broke(const Link& link, ucs_status_t status) {
  Abort(absl::UnavailableError(base::StrCat("the link to ", link.name, " broke in op ",
                                            std::to_string(ops()), ": ",
                                            ucx_.status_string(status))));
}

// A transfer has failed, to or from `peer` or, if it is null, nobody knows.
void UcxMesh::Fail(const Link* peer, ucs_status_t status) {
  if (peer != nullptr) return Broke(*peer, status);
  const auto end = Clock::now() + kNaming;
  while (!is_aborted_.load(std::memory_order_acquire) && Clock::now() < end) {
    if (ucx_.worker_progress(worker_) == 0) std::this_thread::sleep_for(kNap);
  }
  Abort(UcxError(ucx_, "a transfer failed", status));
}

template <typename F>
bool UcxMesh::WaitUntil(const F& is_done, const Link* peer) {
  std::optional<Clock::time_point> began;
  for (int turn = 0; !is_done(); ++turn) {
    if (is_aborted_.load(std::memory_order_acquire)) return false;
    if (ucx_.worker_progress(worker_) != 0) continue;
    if (turn < kSpins) {
      kernels::Pause();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (!began) began = now;
    if (now - *began < kYielding) {
      std::this_thread::yield();
      continue;
    }
    waits_.store(true, std::memory_order_relaxed);
    std::this_thread::sleep_for(kNap);
    if (timeout_.count() == 0 || now - *began < timeout_) continue;
    Abort(absl::DeadlineExceededError(
        base::StrCat(peer == nullptr ? "a peer" : peer->name, " did not come to op ",
                     std::to_string(ops()), " within ", std::to_string(timeout_.count()), " ms")));
  }
  waits_.store(false, std::memory_order_relaxed);
  return !is_aborted_.load(std::memory_order_acquire);
}

bool UcxMesh::WaitFor(void* request, const Link* peer) {
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) {
    Fail(peer, UCS_PTR_STATUS(request));
    return false;
  }
  ucs_status_t status = UCS_INPROGRESS;
  const bool in_time = WaitUntil(
      [&] { return (status = ucx_.request_check_status(request)) != UCS_INPROGRESS; }, peer);
  if (status == UCS_INPROGRESS) {
    given_up_.push_back(request);  // the destructor ends it
    return false;
  }
  ucx_.request_free(request);
  if (status != UCS_OK) Fail(peer, status);
  return in_time && status == UCS_OK;
}

void UcxMesh::StartSend(const void* data, int64_t bytes, int32_t to, Batch batch) {
  if (is_aborted_.load(std::memory_order_acquire)) return;
  Link& link = links_[static_cast<size_t>(to)];
  ucp_request_param_t param{};
  void* request = ucx_.tag_send(link.endpoint, data, static_cast<size_t>(bytes),
                                Tag(own_, link.sent++), &param);
  if (UCS_PTR_IS_ERR(request)) {
    Broke(link, UCS_PTR_STATUS(request));
  } else if (request != nullptr) {
    sends_[batch].push_back(request);
  }
}

bool UcxMesh::FinishSends(Batch batch) {
  std::vector<void*>& sends = sends_[batch];
  while (!sends.empty()) {
    void* request = sends.back();
    sends.pop_back();
    if (!WaitFor(request, nullptr)) return false;
  }
  return !is_aborted_.load(std::memory_order_acquire);
}

void UcxMesh::Push() {
  constexpr int kTurns = 8;  // a message of some fragments
  for (int i = 0; i < kTurns && ucx_.worker_progress(worker_) != 0; ++i) {
  }
}

bool UcxMesh::Flush() {
  ucp_request_param_t param{};
  return WaitFor(ucx_.worker_flush(worker_, &param), nullptr);
}

void UcxMesh::StartPart(int32_t from, int64_t most_bytes, Batch batch) {
  std::vector<char>& part = links_[static_cast<size_t>(from)].inboxes[batch].part;
  if (part.size() < static_cast<size_t>(most_bytes)) part.resize(static_cast<size_t>(most_bytes));
  StartReceive(from, part.data(), most_bytes, batch);
}

// Asked for before they come, messages are put into place as they do. UCX gives a request even for
// one that is there: without a request it leaves the length of the message unknown.
void UcxMesh::StartReceive(int32_t from, void* data, int64_t most_bytes, Batch batch) {
  Link& link = links_[static_cast<size_t>(from)];
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  link.inboxes[batch].receiving = ucx_.tag_recv(worker_, data, static_cast<size_t>(most_bytes),
                                                Tag(from, link.received++), ~ucp_tag_t{0}, &param);
}

bool UcxMesh::FinishReceive(int32_t from, Batch batch, int64_t* bytes) {
  Link& link = links_[static_cast<size_t>(from)];
  void* request = std::exchange(link.inboxes[batch].receiving, nullptr);
  if (UCS_PTR_IS_ERR(request)) {
    Fail(&link, UCS_PTR_STATUS(request));
    return false;
  }
  ucp_tag_recv_info_t arrived{};
  ucs_status_t status = UCS_INPROGRESS;
  const bool in_time = WaitUntil(
      [&] { return (status = ucx_.tag_recv_test(request, &arrived)) != UCS_INPROGRESS; }, &link);
  if (status == UCS_INPROGRESS) {
    given_up_.push_back(request);  // the destructor ends it
    return false;
  }
  ucx_.request_free(request);
  if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    Abort(absl::InvalidArgumentError(
        base::StrCat(link.name, " sent more bytes than the step has in op ", ops())));
  } else if (status != UCS_OK) {
    Fail(&link, status);
  }
  *bytes = static_cast<int64_t>(arrived.length);
  return in_time && status == UCS_OK;
}

bool UcxMesh::ReceiveAll(int32_t from, void* data, int64_t bytes) {
  StartReceive(from, data, bytes, kAtOnce);
  int64_t received = 0;
  if (!FinishReceive(from, kAtOnce, &received)) return false;
  if (received == bytes) return true;
  Abort(absl::InvalidArgumentError(base::StrCat(links_[static_cast<size_t>(from)].name, " sent ",
                                                received, " bytes where a step has ", bytes)));
  return false;
}

std::shared_ptr<Communicator> UcxMesh::Join(const std::vector<int32_t>& members,
                                            kernels::DType wire) {
  return MakeMeshCommunicator(shared_from_this(), members, own_, wire);
}

absl::StatusOr<std::string> RankMesh::Version() {
  HEDDLE_ASSIGN_OR_RETURN(const UcxLibrary* ucx, LoadUcx());
  return std::string(ucx->version_string());
}

absl::StatusOr<std::shared_ptr<RankMesh>> RankMesh::Create(const Options& options) {
  HEDDLE_ASSIGN_OR_RETURN(const UcxLibrary* ucx, LoadUcx());
  auto mesh = std::make_shared<UcxMesh>(*ucx, options);
  HEDDLE_RETURN_IF_ERROR(mesh->Open());
  return mesh;
}

}  // namespace heddle::server
