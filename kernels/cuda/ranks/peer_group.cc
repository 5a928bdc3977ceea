#include "kernels/cuda/ranks/peer_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/ranks/rank_choice.h"

namespace heddle::kernels::cuda {
namespace {

// Ranks tell each other so much when they join.
struct Introduction {
  DeviceInfo info;
  Mailbox* box = nullptr;
  const void* boxes = nullptr;  // of rank 0: its shared pointer to all
  const NanoBatchProfile* nano_batches = nullptr;
};

bool IsAlike(const DeviceInfo& a, const DeviceInfo& b) {
  return a.name == b.name && a.num_multiprocessors == b.num_multiprocessors &&
         a.has_hopper_code == b.has_hopper_code;
}

bool DivideAlike(const Introduction& a, const Introduction& b) {
  if (a.nano_batches == nullptr || b.nano_batches == nullptr) {
    return a.nano_batches == b.nano_batches;
  }
  return a.nano_batches->rules == b.nano_batches->rules;
}

std::string NameOf(const DeviceInfo& info) {
  return absl::StrCat("cuda:", info.ordinal, " (", info.name, ")");
}

}  // namespace

absl::Status NoPeerAccess(const DeviceInfo& own, const DeviceInfo& other, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(own), " cannot read the memory of ", NameOf(other),
                   why.empty() ? "" : absl::StrCat(" (", std::string(why), ")"),
                   ", although the driver says that it can (nvidia-smi topo -p2p r): choose others "
                   "with --rank-devices"));
}

absl::StatusOr<std::unique_ptr<PeerGroup>> PeerGroup::Join(
    Runtime& runtime, std::shared_ptr<Communicator> communicator, const Options& options) {
  if (communicator->world() > kMaxPeers) {
    return absl::InvalidArgumentError(absl::StrCat(
        communicator->world(), " GPUs are to meet each other; up to ", kMaxPeers, " can"));
  }
  const bool shares_memory = communicator->shares_memory();
  std::unique_ptr<PeerGroup> group(new PeerGroup(runtime, std::move(communicator), options));
  if (absl::Status status = group->Allocate(); !status.ok()) {
    group->communicator_->Abort(status);  // the others do not wait for this one
    return status;
  }
  absl::Status status = shares_memory ? group->Meet() : group->MeetOthers();
  if (!status.ok()) {
    group->communicator_->Abort(status);
    return status;
  }
  return group;
}

absl::Status PeerGroup::Allocate() {
  runtime_.Bind();
  HEDDLE_ASSIGN_OR_RETURN(void* counts, runtime_.AllocateDevice(sizeof(PeerCounts)));
  peers_.rank = communicator_->rank();
  peers_.world = communicator_->world();
  peers_.counts = static_cast<PeerCounts*>(counts);
  HEDDLE_ASSIGN_OR_RETURN(void* note, runtime_.AllocatePinned(sizeof(PeerNote)));
  peers_.note = new (note) PeerNote();
  watch_->note = peers_.note;
  communicator_->AtAbort([watch = watch_] {
    const std::lock_guard lock(watch->mutex);
    if (watch->note != nullptr) std::atomic_ref(watch->note->abort).store(1);
  });
  if (communicator_->shares_memory()) HEDDLE_RETURN_IF_ERROR(AllocateMailbox());
  return runtime_.Synchronize();  // counts and mailbox are empty
}

absl::Status PeerGroup::AllocateMailbox() {
  HEDDLE_ASSIGN_OR_RETURN(void* box, runtime_.AllocateDevice(sizeof(Mailbox)));
  peers_.boxes[peers_.rank] = static_cast<Mailbox*>(box);
  peers_.limit_ns = static_cast<uint64_t>(options_.wait_ms) * 1'000'000;
  return absl::OkStatus();
}

absl::Status PeerGroup::Meet() {
  if (peers_.rank == 0) boxes_ = std::make_shared<Boxes>();
  const Introduction own = {runtime_.info(), peers_.boxes[peers_.rank], &boxes_,
                            options_.nano_batches};
  std::array<const void*, kMaxRanks> all{};
  if (!communicator_->Exchange(&own, sizeof(own), sizeof(own), all))
    return WhyAborted(*communicator_);
  if (peers_.rank != 0) {
    boxes_ = *static_cast<const std::shared_ptr<Boxes>*>(
        static_cast<const Introduction*>(all[0])->boxes);
  }
  {
    const std::lock_guard lock(boxes_->mutex);
    ++boxes_->members;
  }
  absl::Status status;
  for (int32_t r = 0; r < peers_.world && status.ok(); ++r) {
    const auto& other = *static_cast<const Introduction*>(all[static_cast<size_t>(r)]);
    peers_.boxes[r] = other.box;
    if (!IsAlike(own.info, other.info)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(NameOf(own.info), " and ", NameOf(other.info),
                       " are of different kinds; GPUs that share a model have to be equal"));
    } else if (!DivideAlike(own, other)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(NameOf(own.info), ", rank ", peers_.rank, ", and ", NameOf(other.info),
                       ", rank ", r, ", have different tune profiles; ranks divide steps alike"));
    } else if (other.info.ordinal != own.info.ordinal) {
      status = OpenPeer(own.info, other.info);
    }
  }
  if (!status.ok()) communicator_->Abort(status);
  if (!communicator_->Barrier()) return WhyAborted(*communicator_);
  return absl::OkStatus();
}

absl::Status PeerGroup::UseHost() {
  peers_.limit_ns = std::numeric_limits<uint64_t>::max();
  host_ = std::make_unique<HostPeers>(runtime_, communicator_,
                                      std::chrono::milliseconds(options_.wait_ms), noun(),
                                      [links = options_.links] { return links->any_waits(); });
  HEDDLE_CHECK(options_.relay != nullptr, "ranks that share no memory meet through the host");
  return host_->Create(&peers_, options_.relay(), options_.sizes, options_.host_free_bytes);
}

// Connects all ranks over NCCL, or none: then it returns why.
absl::StatusOr<std::string> PeerGroup::Connect(const NcclApi& api) {
  constexpr int64_t kMostConnectMs = 20'000;
  absl::StatusOr<std::unique_ptr<NcclGroup>> made = NcclGroup::Join(
      runtime_, api, communicator_,
      {.limit = std::chrono::milliseconds(options_.wait_ms),
       .connect_limit = std::chrono::milliseconds(std::min(kMostConnectMs, options_.wait_ms)),
       .noun = noun(),
       .shares_layers = options_.shares_layers,
       .sizes = options_.sizes,
       .links = options_.links});
  HEDDLE_ASSIGN_OR_RETURN(std::string why, WhyNotConnected(*communicator_, made.status()));
  if (why.empty()) nccl_ = *std::move(made);
  return why;
}

// The others' devices may be of other machines: they say what matters in a few bytes.
absl::Status PeerGroup::MeetOthers() {
  absl::StatusOr<NcclApi> api = absl::UnimplementedError("--rank-network is host");
  if (options_.network != RankNetwork::kHost) api = NcclApi::Load();
  HEDDLE_ASSIGN_OR_RETURN(const RankChoice choice,
                          AgreeOnRanks(*communicator_, runtime_.info(),
                                       {.network = options_.network,
                                        .nccl = api,
                                        .activations = options_.activations,
                                        .shares_layers = options_.shares_layers}));
  std::string why_not = choice.why_not;
  if (choice.uses_nccl) {
    HEDDLE_ASSIGN_OR_RETURN(why_not, Connect(*api));
    if (!why_not.empty() && choice.must_use_nccl) {
      return absl::UnavailableError(absl::StrCat("--rank-network is nccl: ", why_not));
    }
  }
  if (nccl_ != nullptr) {
    carrier_ = absl::StrCat("NCCL ", NcclVersionText(api->version));
  } else {
    carrier_ = "the host";
    if (options_.network != RankNetwork::kHost) why_not_nccl_ = why_not;
  }
  // Few rows go through the host in any case.
  if (nccl_ == nullptr || options_.shares_layers) HEDDLE_RETURN_IF_ERROR(UseHost());
  return communicator_->Barrier() ? absl::OkStatus() : WhyAborted(*communicator_);
}

void PeerGroup::EndKernels() {
  std::atomic_ref(peers_.note->abort).store(1);
  if (nccl_ != nullptr) nccl_->StopWatching();
}

void PeerGroup::GiveUp() {
  EndKernels();
  if (nccl_ != nullptr) nccl_->GiveUp();
}

void PeerGroup::LeaveMailbox() {
  Mailbox* box = peers_.boxes[peers_.rank];
  if (box == nullptr) return;
  if (boxes_ == nullptr) return runtime_.FreeDevice(box, sizeof(Mailbox));
  const std::lock_guard lock(boxes_->mutex);
  boxes_->left.push_back(box);
  if (--boxes_->members > 0) return;
  // A pointer says which device it belongs to; those few bytes stay in their books.
  for (Mailbox* each : boxes_->left) runtime_.FreeDevice(each, each == box ? sizeof(Mailbox) : 0);
  boxes_->left.clear();
}

PeerGroup::~PeerGroup() {
  host_ = nullptr;
  nccl_ = nullptr;
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->note = nullptr;
  }
  if (communicator_->shares_memory()) LeaveMailbox();
  if (peers_.counts != nullptr) runtime_.FreeDevice(peers_.counts, sizeof(PeerCounts));
  runtime_.FreePinned(peers_.note);
}

absl::StatusOr<StageRowsParams> PeerGroup::Sent(int32_t to, void* rows, int64_t bytes) {
  const uint32_t number = sent_[to]++;
  StageRowsParams message = Message(to, number, rows, bytes);
  if (host_ != nullptr) {
    HEDDLE_ASSIGN_OR_RETURN(message.copy, host_->Sent(to, number, bytes));
  }
  return message;
}

absl::StatusOr<StageRowsParams> PeerGroup::Received(int32_t from, void* rows, int64_t bytes) {
  const uint32_t number = received_[from]++;
  if (host_ != nullptr) HEDDLE_RETURN_IF_ERROR(host_->Received(from, number, bytes));
  return Message(from, number, rows, bytes);
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
  if (nccl_ != nullptr) {
    if (absl::Status status = nccl_->Check(); !status.ok()) {
      communicator_->Abort(status);
      return communicator_->status();
    }
  }
  const auto trouble =
      static_cast<Trouble>(std::atomic_ref(peers_.note->trouble).load(std::memory_order_acquire));
  if (trouble == Trouble::kNone) return absl::OkStatus();
  const PeerNote& note = *peers_.note;
  std::string message = absl::StrCat(NameOf(runtime_.info()), ", ", noun(), " ", peers_.rank, ", ");
  switch (trouble) {
    case Trouble::kNobodyCame:
      absl::StrAppend(&message, "has waited ", peers_.limit_ns / 1'000'000, " ms for ", noun(), " ",
                      note.rank, ", which did not come to an op that they do together");
      break;
    case Trouble::kOtherOp:
      absl::StrAppend(&message, "and ", noun(), " ", note.rank,
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
