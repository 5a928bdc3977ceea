#include "kernels/cuda/ranks/peer_group.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels::cuda {
namespace {

// Ranks tell each other so much when they join.
struct Introduction {
  DeviceInfo info;
  Mailbox* box = nullptr;
};

bool IsAlike(const DeviceInfo& a, const DeviceInfo& b) {
  return a.name == b.name && a.num_multiprocessors == b.num_multiprocessors &&
         a.has_hopper_code == b.has_hopper_code;
}

std::string NameOf(const DeviceInfo& info) {
  return absl::StrCat("cuda:", info.ordinal, " (", info.name, ")");
}

absl::Status Given(const Communicator& communicator) {
  const absl::Status why = communicator.status();
  return why.ok() ? absl::AbortedError("the group of ranks was given up") : why;
}

}  // namespace

absl::Status NoPeerAccess(const DeviceInfo& own, const DeviceInfo& other, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(own), " cannot read the memory of ", NameOf(other),
                   why.empty() ? "" : absl::StrCat(" (", std::string(why), ")"),
                   "; GPUs that share a model need NVLink, or PCIe with peer-to-peer access "
                   "(nvidia-smi topo -p2p "
                   "r shows which have it): choose others with --rank-devices"));
}

absl::StatusOr<std::unique_ptr<PeerGroup>> PeerGroup::Join(
    Runtime& runtime, std::shared_ptr<Communicator> communicator, int64_t wait_ms,
    const char* noun) {
  if (communicator->world() > kMaxPeers) {
    return absl::InvalidArgumentError(absl::StrCat(
        communicator->world(), " GPUs are to meet each other; up to ", kMaxPeers, " can"));
  }
  std::unique_ptr<PeerGroup> group(new PeerGroup(runtime, std::move(communicator), noun));
  HEDDLE_RETURN_IF_ERROR(group->Allocate(wait_ms));
  HEDDLE_RETURN_IF_ERROR(group->Meet());
  return group;
}

absl::Status PeerGroup::Allocate(int64_t wait_ms) {
  runtime_.Bind();
  HEDDLE_ASSIGN_OR_RETURN(void* box, runtime_.AllocateDevice(sizeof(Mailbox)));
  peers_.rank = communicator_->rank();
  peers_.world = communicator_->world();
  peers_.boxes[peers_.rank] = static_cast<Mailbox*>(box);
  peers_.limit_ns = static_cast<uint64_t>(wait_ms) * 1'000'000;
  HEDDLE_ASSIGN_OR_RETURN(void* note, runtime_.AllocatePinned(sizeof(PeerNote)));
  peers_.note = new (note) PeerNote();
  watch_->note = peers_.note;
  communicator_->AtAbort([watch = watch_] {
    const std::lock_guard lock(watch->mutex);
    if (watch->note != nullptr) std::atomic_ref(watch->note->abort).store(1);
  });
  return runtime_.Synchronize();  // the mailbox is empty
}

absl::Status PeerGroup::Meet() {
  const Introduction own = {runtime_.info(), peers_.boxes[peers_.rank]};
  std::array<const void*, kMaxRanks> all{};
  if (!communicator_->Exchange(&own, sizeof(own), sizeof(own), all)) return Given(*communicator_);
  absl::Status status;
  for (int32_t r = 0; r < peers_.world && status.ok(); ++r) {
    const auto& other = *static_cast<const Introduction*>(all[static_cast<size_t>(r)]);
    peers_.boxes[r] = other.box;
    if (!IsAlike(own.info, other.info)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(NameOf(own.info), " and ", NameOf(other.info),
                       " are of different kinds; GPUs that share a model have to be equal"));
    } else if (other.info.ordinal != own.info.ordinal) {
      status = OpenPeer(own.info, other.info);
    }
  }
  if (!status.ok()) communicator_->Abort(status);
  if (!communicator_->Barrier()) return Given(*communicator_);
  return absl::OkStatus();
}

PeerGroup::~PeerGroup() {
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->note = nullptr;
  }
  runtime_.FreeDevice(peers_.boxes[peers_.rank], sizeof(Mailbox));
  runtime_.FreePinned(peers_.note);
}

StageRowsParams PeerGroup::Message(int32_t other, uint32_t number, void* rows,
                                   int64_t bytes) const {
  StageRowsParams params = {};
  params.peers = peers_;
  params.other = other;
  params.number = number;
  params.what = StageWord(bytes);
  params.rows = rows;
  params.bytes = bytes;
  return params;
}

absl::Status PeerGroup::Check() {
  if (absl::Status status = communicator_->status(); !status.ok()) return status;
  const auto trouble =
      static_cast<Trouble>(std::atomic_ref(peers_.note->trouble).load(std::memory_order_acquire));
  if (trouble == Trouble::kNone) return absl::OkStatus();
  const PeerNote& note = *peers_.note;
  std::string message = absl::StrCat(NameOf(runtime_.info()), ", ", noun_, " ", peers_.rank, ", ");
  switch (trouble) {
    case Trouble::kNobodyCame:
      absl::StrAppend(&message, "has waited ", peers_.limit_ns / 1'000'000, " ms for ", noun_, " ",
                      note.rank, ", which did not come to an op that they do together");
      break;
    case Trouble::kOtherOp:
      absl::StrAppend(&message, "and ", noun_, " ", note.rank,
                      " do different ops at the same time: ", absl::Hex(note.what), " and ",
                      absl::Hex(note.other));
      break;
    default:
      absl::StrAppend(&message, "was told to give up");
  }
  communicator_->Abort(absl::UnavailableError(message));
  return communicator_->status();
}

}  // namespace heddle::kernels::cuda
