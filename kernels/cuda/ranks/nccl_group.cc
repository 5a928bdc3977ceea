#include "kernels/cuda/ranks/nccl_group.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::kernels::cuda {
namespace {

// A network of 400 Gbit/s takes some four blocks of NCCL, NVLink more; both leave most of the
// multiprocessors to others. Not measured.
constexpr int32_t kRankBlocks = 8;
constexpr int32_t kStageBlocks = 2;
// Between two looks, and from when on an op that has begun is said to wait.
constexpr std::chrono::milliseconds kLook{1};
constexpr std::chrono::milliseconds kIdleLook{20};  // with no op under way
// Bytes that pass over each link when it is made, to and from each rank.
constexpr int64_t kTryBytes = 256;
constexpr std::chrono::microseconds kTryNap{200};
constexpr std::chrono::milliseconds kWaits{3};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Join(
    Runtime& runtime, const NcclApi& api, std::shared_ptr<Communicator> communicator,
    const Options& options) {
  std::unique_ptr<NcclGroup> group(new NcclGroup(runtime, api, std::move(communicator), options));
  runtime.Bind();
  HEDDLE_RETURN_IF_ERROR(options.shares_layers ? group->ConnectRanks() : group->ConnectStages());
  group->watch_ = std::thread([own = group.get()] { own->Watch(); });
  pthread_setname_np(group->watch_.native_handle(), "rank-nccl");
  return group;
}

NcclGroup::~NcclGroup() {
  is_stopping_ = true;
  if (watch_.joinable()) watch_.join();
}

NcclLink::Place NcclGroup::PlaceOf(int32_t rank, int32_t world, int32_t most_blocks) const {
  return {.rank = rank,
          .world = world,
          .most_blocks = most_blocks,
          .check = [group = communicator_] { return group->status(); },
          .limit = options_.connect_limit,
          .links = options_.links};
}

// Makes an op on a stream of its own, with some bytes of the device for each rank and two more, and
// waits for its end.
absl::Status NcclGroup::Try(NcclLink& link,
                            const std::function<absl::Status(uint8_t* place, void* stream)>& call) {
  const int64_t bytes = kTryBytes * (communicator_->world() + 2);
  HEDDLE_ASSIGN_OR_RETURN(void* data, runtime_.AllocateDevice(bytes));
  HEDDLE_RETURN_IF_ERROR(runtime_.Synchronize());
  absl::Status status;
  {
    HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<SideStream> side, SideStream::Create(runtime_));
    HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<StreamMark> ended, StreamMark::Create(runtime_));
    status = call(static_cast<uint8_t*>(data), side->stream());
    if (status.ok()) status = ended->Record(side->stream());
    const Clock::time_point end = Clock::now() + options_.connect_limit;
    while (status.ok() && !ended->IsPassed()) {
      status = communicator_->status();
      if (Clock::now() > end) {
        status = absl::UnavailableError(
            absl::StrCat("NCCL ", NcclVersionText(api_.version), " connects the ", options_.noun,
                         "s, and brings nothing within ", options_.connect_limit.count(),
                         " ms; NCCL_DEBUG=INFO shows over what it tries"));
      }
      std::this_thread::sleep_for(kTryNap);
    }
    if (status.ok()) status = link.Look();
    if (!status.ok()) link.Abort();  // what was enqueued ends, and the stream with it
  }
  runtime_.FreeDevice(data, bytes);
  return status;
}

absl::Status NcclGroup::ConnectRanks() {
  struct Words {
    NcclId id;
    NcclResult result;  // of making it
  } words = {};
  if (communicator_->rank() == 0) words.result = api_.get_unique_id(&words.id);
  if (!communicator_->Broadcast(&words, sizeof(words), 0)) return WhyAborted(*communicator_);
  HEDDLE_RETURN_IF_ERROR(api_.ToStatus(words.result, "ncclGetUniqueId", nullptr));
  HEDDLE_ASSIGN_OR_RETURN(ranks_, NcclLink::Connect(api_, words.id,
                                                    PlaceOf(communicator_->rank(),
                                                            communicator_->world(), kRankBlocks)));
  HEDDLE_RETURN_IF_ERROR(Try(*ranks_, [&](uint8_t* place, void* stream) {
    return ranks_->AllGather(place, place + kTryBytes, kTryBytes, stream);
  }));
  return Try(*ranks_, [&](uint8_t* place, void* stream) {
    std::vector<NcclPiece> sent, received;
    sent.reserve(static_cast<size_t>(communicator_->world()));
    received.reserve(static_cast<size_t>(communicator_->world()));
    for (int32_t r = 0; r < communicator_->world(); ++r) {
      if (r == communicator_->rank()) continue;
      sent.push_back({r, place, kTryBytes});
      received.push_back({r, place + (r + 1) * kTryBytes, kTryBytes});
    }
    return ranks_->Exchange(sent, received, stream);
  });
}

// Whether this stage passes rows to each other one.
std::vector<uint8_t> NcclGroup::Targets() const {
  const auto world = static_cast<size_t>(communicator_->world());
  const auto own = static_cast<size_t>(communicator_->rank());
  std::vector<uint8_t> targets(world, 0);
  targets[(own + 1) % world] = 1;
  for (size_t to = 0; to < options_.sizes.sent.size(); ++to) {
    targets[to] = options_.sizes.sent[to] > 0 ? 1 : 0;
  }
  return targets;
}

// A stage makes the ids of the pairs that it sends to, and all know all. Pairs connect in one order
// everywhere, so that of those that are left the first one always has both its stages there.
absl::Status NcclGroup::ConnectStages() {
  struct Ids {
    NcclId id[kMaxPeers];
    uint8_t is_target[kMaxPeers];
    NcclResult result;  // of making them
  };
  Ids own = {};
  const std::vector<uint8_t> targets = Targets();
  for (size_t to = 0; to < targets.size(); ++to) {
    own.is_target[to] = targets[to];
    if (targets[to] == 0) continue;
    if (own.result == kNcclSuccess) own.result = api_.get_unique_id(&own.id[to]);
  }
  std::array<Ids, kMaxPeers> all = {};
  if (!communicator_->AllGather(&own, all.data(), sizeof(own))) return WhyAborted(*communicator_);
  for (size_t from = 0; from < targets.size(); ++from) {
    HEDDLE_RETURN_IF_ERROR(api_.ToStatus(all[from].result, "ncclGetUniqueId", nullptr));
  }
  to_ = std::vector<Edge>(targets.size());
  from_ = std::vector<Edge>(targets.size());
  for (size_t from = 0; from < targets.size(); ++from) {
    for (size_t to = 0; to < targets.size(); ++to) {
      if (all[from].is_target[to] == 0 || from == to) continue;
      HEDDLE_RETURN_IF_ERROR(
          ConnectPair(all[from].id[to], static_cast<int32_t>(from), static_cast<int32_t>(to)));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::ConnectPair(const NcclId& id, int32_t from, int32_t to) {
  const int32_t own = communicator_->rank();
  if (own != from && own != to) return absl::OkStatus();
  const bool sends = own == from;
  Edge& edge = sends ? to_[static_cast<size_t>(to)] : from_[static_cast<size_t>(from)];
  HEDDLE_ASSIGN_OR_RETURN(edge.link,
                          NcclLink::Connect(api_, id, PlaceOf(sends ? 0 : 1, 2, kStageBlocks)));
  HEDDLE_RETURN_IF_ERROR(Try(*edge.link, [&](uint8_t* place, void* stream) {
    const NcclPiece piece = {.rank = sends ? 1 : 0, .data = place, .bytes = kTryBytes};
    const std::span<const NcclPiece> one = {&piece, 1}, none;
    return edge.link->Exchange(sends ? one : none, sends ? none : one, stream);
  }));
  if (!sends) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(edge.side, SideStream::Create(runtime_));
  HEDDLE_ASSIGN_OR_RETURN(edge.ready, StreamMark::Create(runtime_));
  return absl::OkStatus();
}

absl::StatusOr<NcclGroup::Op> NcclGroup::NewOp() {
  Op op;
  {
    const std::lock_guard lock(mutex_);
    if (!unused_.empty()) {
      op = std::move(unused_.back());
      unused_.pop_back();
    }
  }
  if (op.begun == nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(op.begun, StreamMark::Create(runtime_));
    HEDDLE_ASSIGN_OR_RETURN(op.ended, StreamMark::Create(runtime_));
  }
  op.number = ++n_ops_;
  return op;
}

// The others do not wait for an op that is missing.
absl::Status NcclGroup::OrAbort(absl::Status status) {
  if (!status.ok()) communicator_->Abort(status);
  return status;
}

// Enqueues an op on lane 0 between two marks.
absl::Status NcclGroup::Do(const std::function<absl::Status(void* stream)>& call) {
  const Stream lane = runtime_.stream();
  HEDDLE_CHECK(lane->tape == nullptr, "an op of a library is not kept on a tape");
  HEDDLE_ASSIGN_OR_RETURN(Op op, NewOp());
  HEDDLE_RETURN_IF_ERROR(op.begun->Record(lane->stream));
  HEDDLE_RETURN_IF_ERROR(OrAbort(call(lane->stream)));
  HEDDLE_RETURN_IF_ERROR(op.ended->Record(lane->stream));
  lane->joins = true;  // the next launch is behind something other than a launch
  const std::lock_guard lock(mutex_);
  op.since = Clock::now();
  ops_.push_back(std::move(op));
  return absl::OkStatus();
}

absl::Status NcclGroup::AllGather(const void* part, void* whole, int64_t bytes) {
  return Do([&](void* stream) { return ranks_->AllGather(part, whole, bytes, stream); });
}

absl::Status NcclGroup::Exchange(std::span<const NcclPiece> sent,
                                 std::span<const NcclPiece> received) {
  return Do([&](void* stream) { return ranks_->Exchange(sent, received, stream); });
}

absl::Status NcclGroup::Send(int32_t to, void* rows, int64_t bytes) {
  Edge& edge = to_[static_cast<size_t>(to)];
  if (edge.link == nullptr) {
    return absl::InternalError(absl::StrCat(options_.noun, " ", communicator_->rank(),
                                            " passes rows to ", to, ", which is not foreseen"));
  }
  const Stream lane = runtime_.stream();
  HEDDLE_CHECK(lane->tape == nullptr, "an op of a library is not kept on a tape");
  HEDDLE_RETURN_IF_ERROR(edge.ready->Record(lane->stream));
  lane->joins = true;
  HEDDLE_RETURN_IF_ERROR(edge.ready->Await(edge.side->stream()));
  const NcclPiece piece = {.rank = 1, .data = rows, .bytes = bytes};
  return OrAbort(edge.link->Exchange({&piece, 1}, {}, edge.side->stream()));
}

absl::Status NcclGroup::Receive(int32_t from, void* rows, int64_t bytes) {
  Edge& edge = from_[static_cast<size_t>(from)];
  if (edge.link == nullptr) {
    return absl::InternalError(absl::StrCat(options_.noun, " ", communicator_->rank(),
                                            " takes rows of ", from, ", which is not foreseen"));
  }
  const NcclPiece piece = {.rank = 0, .data = rows, .bytes = bytes};
  return Do([&](void* stream) { return edge.link->Exchange({}, {&piece, 1}, stream); });
}

void NcclGroup::GiveUp() {
  is_given_up_ = true;
  options_.links->Abort();
}

void NcclGroup::SetWaits(bool waits) {
  if (std::exchange(waits_, waits) != waits) options_.links->AddWaiting(waits ? 1 : -1);
}

// An error: the device hangs.
absl::Status NcclGroup::LookAtOps() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  has_ops_ = !ops_.empty();
  while (!ops_.empty() && ops_.front().ended->IsPassed()) {
    n_begun_ = std::max(n_begun_, ops_.front().number);
    unused_.push_back(std::move(ops_.front()));
    ops_.pop_front();
    if (!ops_.empty()) ops_.front().since = now;
  }
  if (ops_.empty()) {
    SetWaits(false);
    return absl::OkStatus();
  }
  const Op& oldest = ops_.front();
  const auto passed = now - oldest.since;
  if (oldest.begun->IsPassed()) {
    n_begun_ = std::max(n_begun_, oldest.number);
    SetWaits(passed > kWaits);
    return absl::OkStatus();
  }
  SetWaits(false);
  if (options_.links->any_waits()) ops_.front().since = now;  // behind another group's op
  if (passed <= options_.limit) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cuda:", runtime_.info().ordinal, " (", runtime_.info().name, "), ",
                   options_.noun, " ", communicator_->rank(), ", has not come to op ",
                   oldest.number, " within ", options_.limit.count(), " ms: it hangs"));
}

absl::Status NcclGroup::LookAtLinks() {
  if (ranks_ != nullptr) HEDDLE_RETURN_IF_ERROR(ranks_->Look());
  for (std::vector<Edge>* edges : {&to_, &from_}) {
    for (Edge& edge : *edges) {
      if (edge.link != nullptr) HEDDLE_RETURN_IF_ERROR(edge.link->Look());
    }
  }
  return absl::OkStatus();
}

void NcclGroup::Watch() {
  runtime_.Bind();
  std::chrono::milliseconds nap = kLook;
  for (; !is_stopping_; std::this_thread::sleep_for(nap)) {
    if (is_given_up_) continue;
    if (!communicator_->status().ok()) GiveUp();
    const uint64_t begun = n_begun_;
    absl::Status status = LookAtOps();
    nap = has_ops_ ? kLook : kIdleLook;
    communicator_->Report(static_cast<int64_t>(n_begun_ - begun), waits_);
    if (status.ok()) status = LookAtLinks();
    if (!status.ok()) communicator_->Abort(status);
    if (!communicator_->status().ok()) GiveUp();
  }
  SetWaits(false);
  communicator_->Report(0, false);
}

}  // namespace heddle::kernels::cuda
