#include "kernels/cuda/ranks/nccl_link.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels::cuda {
namespace {

// Between two looks at what NCCL goes on with by itself: an op is enqueued in some microseconds,
// and a communicator made in tenths of a second.
constexpr int kFastLooks = 1000;
constexpr std::chrono::microseconds kSettleNap{200};
// How long others have to say which rank is gone.
constexpr std::chrono::seconds kGrace{3};

absl::Status GivenUp() {
  return absl::UnavailableError("what goes over NCCL was given up on this GPU");
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclLink>> NcclLink::Connect(const NcclApi& api, const NcclId& id,
                                                            Place place) {
  NcclConfig config;
  config.min_ctas = 1;
  config.max_ctas = place.most_blocks;
  std::unique_ptr<NcclLink> link(new NcclLink(api, std::move(place)));
  NcclComm* comm = nullptr;
  const NcclResult result =
      api.comm_init_rank_config(&comm, link->place_.world, id, link->place_.rank, &config);
  link->comm_ = comm;
  constexpr const char* kName = "ncclCommInitRankConfig";
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return api.ToStatus(result, kName, comm);
  }
  HEDDLE_RETURN_IF_ERROR(link->Settle(kName));
  return link;
}

// The communicator's own error, or kNcclInProgress. REQUIRES: the mutex is held, and comm_ is
// there.
NcclResult NcclLink::State() {
  NcclResult state = kNcclSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm_, &state);
  if (asked != kNcclSuccess) state = asked;
  if (state != kNcclRemoteError) return state;
  const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  if (!gone_since_.has_value()) gone_since_ = now;
  return now - *gone_since_ < kGrace ? kNcclInProgress : state;
}

// Waits until the communicator has nothing under way on the host.
absl::Status NcclLink::Settle(const char* name) {
  const std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + place_.limit;
  for (int look = 0;; ++look) {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return absl::OkStatus();
      const NcclResult state = State();
      if (state != kNcclInProgress) return api_.ToStatus(state, name, comm_);
    }
    HEDDLE_RETURN_IF_ERROR(place_.check());
    if (std::chrono::steady_clock::now() > end) {
      return absl::UnavailableError(absl::StrCat("NCCL ", NcclVersionText(api_.version), ": ", name,
                                                 " has not ended within ", place_.limit.count(),
                                                 " ms; NCCL_DEBUG=INFO shows what it waits for"));
    }
    if (look < kFastLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSettleNap);
    }
  }
}

absl::Status NcclLink::Call(const char* name, const std::function<NcclResult(NcclComm*)>& call) {
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return place_.check().ok() ? GivenUp() : absl::OkStatus();
    const NcclResult result = call(comm_);
    if (result == kNcclSuccess) return absl::OkStatus();
    if (result != kNcclInProgress && result != kNcclRemoteError) {
      status = api_.ToStatus(result, name, comm_);
    }
  }
  if (status.ok()) status = Settle(name);
  return place_.check().ok() ? status : absl::OkStatus();
}

absl::Status NcclLink::AllGather(const void* part, void* whole, int64_t bytes, void* stream) {
  return Call("ncclAllGather", [&](NcclComm* comm) {
    return api_.all_gather(part, whole, static_cast<size_t>(bytes), kNcclUint8, comm, stream);
  });
}

absl::Status NcclLink::Exchange(std::span<const NcclPiece> sent,
                                std::span<const NcclPiece> received, void* stream) {
  return Call("ncclSend and ncclRecv", [&](NcclComm* comm) {
    NcclResult result = api_.group_start();
    if (result != kNcclSuccess) return result;
    const auto keep = [&](NcclResult one) {  // the first failure; the group is ended all the same
      if (result == kNcclSuccess || result == kNcclInProgress) result = one;
    };
    for (const NcclPiece& piece : sent) {
      if (piece.bytes == 0) continue;
      keep(api_.send(piece.data, static_cast<size_t>(piece.bytes), kNcclUint8, piece.rank, comm,
                     stream));
    }
    for (const NcclPiece& piece : received) {
      if (piece.bytes == 0) continue;
      keep(api_.recv(piece.data, static_cast<size_t>(piece.bytes), kNcclUint8, piece.rank, comm,
                     stream));
    }
    keep(api_.group_end());
    return result;
  });
}

NcclLink::NcclLink(const NcclApi& api, Place place) : api_(api), place_(std::move(place)) {
  place_.links->Add(this);
}

NcclLink::~NcclLink() {
  place_.links->Remove(this);
  Abort();
}

void NcclLink::Abort() {
  if (NcclComm* comm = Take(); comm != nullptr) api_.comm_abort(comm);
}

// The communicator, which is the caller's to abort; null: it was aborted.
NcclComm* NcclLink::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(comm_, nullptr);
}

void NcclLinks::Add(NcclLink* link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(link);
}

void NcclLinks::Remove(NcclLink* link) {
  const std::lock_guard lock(mutex_);
  std::erase(links_, link);
}

// In a group each call tells its kernels to end at once, and the group waits for all.
void NcclLinks::Abort() {
  const std::lock_guard lock(mutex_);
  const NcclApi* api = nullptr;
  for (NcclLink* link : links_) {
    NcclComm* comm = link->Take();
    if (comm == nullptr) continue;
    if (api == nullptr) link->api_.group_start();
    api = &link->api_;
    api->comm_abort(comm);
  }
  if (api != nullptr) api->group_end();
}

absl::Status NcclLink::Look() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return GivenUp();
  const NcclResult state = State();
  return state == kNcclInProgress ? absl::OkStatus()
                                  : api_.ToStatus(state, "an op between ranks", comm_);
}

}  // namespace heddle::kernels::cuda
