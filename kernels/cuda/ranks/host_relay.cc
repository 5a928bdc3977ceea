#include "kernels/cuda/ranks/host_relay.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/await.h"

namespace heddle::kernels::cuda {
namespace {

// The host waits for a kernel by spinning as long as the next sum of a decoding step may take, then
// lets others run, then sleeps for a part of what a message between machines takes.
constexpr int kSpins = 4 * kMaxSpins;
constexpr int kYields = 200;
constexpr std::chrono::microseconds kNap{20};
constexpr int kTurnsPerLook = 64;  // at whether the group was given up

// Travels before each part, in 16 bytes so that parts stay aligned.
struct PartHeader {
  int64_t bytes;  // of the part; 0: the rank has none
  uint32_t what;  // the op, as letters say it
  uint32_t unused;
};
static_assert(sizeof(PartHeader) == 16);
constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(PartHeader));
static_assert(kHeaderBytes == kPartHeaderBytes && kLatePlaces == kLatePartPlaces);

uint8_t* BehindHeader(void* place) { return static_cast<uint8_t*>(place) + kHeaderBytes; }

uint32_t Acquire(const uint32_t& word) {
  return std::atomic_ref(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}
void Release(uint32_t* word, uint32_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

}  // namespace

// Meanwhile the network goes on: others may send what later ops take.
template <typename IsThere>
bool HostPeers::AwaitDevice(const IsThere& is_there) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> since;
  for (int turn = 0; !is_there(); ++turn) {
    if (turn % kTurnsPerLook == kTurnsPerLook - 1 && is_given_up()) return false;
    if (turn < kSpins) {
      Pause();
      continue;
    }
    communicator_->Progress();
    if (turn < kSpins + kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(kNap);
    const Clock::time_point now = Clock::now();
    if (!since.has_value() || (device_waits_ && device_waits_())) since = now;
    if (now - *since <= limit_) continue;
    communicator_->Abort(absl::UnavailableError(
        absl::StrCat("cuda:", runtime_.info().ordinal, " (", runtime_.info().name, "), ", noun_,
                     " ", peers_.rank, ", has not come to op ", n_performed_, " within ",
                     limit_.count(), " ms: it hangs")));
    return false;
  }
  return true;
}

HostPeers::~HostPeers() {
  if (relay_ != nullptr) relay_->Stop();
  for (void* data : pinned_) runtime_.FreePinned(data);
}

absl::Status HostPeers::Create(Peers* peers, std::shared_ptr<HostRelay> relay,
                               const MeetingSizes& sizes,
                               const std::function<int64_t()>& free_bytes) {
  peers_ = *peers;
  // Ranks of this process join at the same time: each counts what those before it have taken.
  static std::mutex joining;
  const std::lock_guard lock(joining);
  HEDDLE_RETURN_IF_ERROR(CheckRoom(sizes, free_bytes));
  for (int32_t r = 0; r < peers->world; ++r) {
    HEDDLE_ASSIGN_OR_RETURN(void* box, runtime_.AllocatePinned(sizeof(Mailbox)));
    pinned_.push_back(box);
    peers->boxes[r] = new (box) Mailbox();
  }
  peers_ = *peers;
  if (absl::Status status = ReserveAll(sizes); !status.ok()) {
    if (!absl::IsResourceExhausted(status)) return status;
    return NoRoom(sizes, "the host locks no more");
  }
  relay_ = std::move(relay);
  relay_->Enter(this);
  return absl::OkStatus();
}

absl::Status HostPeers::CheckRoom(const MeetingSizes& sizes,
                                  const std::function<int64_t()>& free_bytes) const {
  if (!free_bytes) return absl::OkStatus();
  const int64_t wanted = PlaceBytes(sizes, peers_.rank), found = free_bytes();
  if (wanted <= found) return absl::OkStatus();
  return NoRoom(sizes, absl::StrCat(found >> 20, " MiB are free"));
}

absl::Status HostPeers::NoRoom(const MeetingSizes& sizes, std::string_view found) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cuda:", runtime_.info().ordinal, " (", runtime_.info().name, ") needs ",
      PlaceBytes(sizes, peers_.rank) >> 20, " MiB of page-locked memory of the host for what ",
      noun_, " ", peers_.rank, " exchanges with others, and ", std::string(found),
      ": use a smaller --max-batch-tokens, or give this process or container more memory (its "
      "memory limit, ulimit -l)"));
}

absl::Status HostPeers::Reserve(Place* place, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(void* data, runtime_.AllocatePinned(bytes));
  pinned_.push_back(data);
  *place = {data, bytes};
  return absl::OkStatus();
}

absl::Status HostPeers::ReserveAll(const MeetingSizes& sizes) {
  const auto own = static_cast<size_t>(peers_.rank);
  for (size_t r = 0; r < sizes.parts.size(); ++r) {
    const int64_t header = r == own ? kHeaderBytes : 0;
    for (size_t turn = 0; turn < 2; ++turn) {
      Place* place = r == own ? &own_parts_[turn] : &parts_[turn][r];
      HEDDLE_RETURN_IF_ERROR(Reserve(place, header + sizes.parts[r]));
      if (r == own || sizes.late_part == 0) continue;
      HEDDLE_RETURN_IF_ERROR(Reserve(&late_parts_[turn][r], sizes.late_part));
    }
  }
  for (Place& place : late_own_parts_) {
    if (sizes.late_part == 0) break;
    HEDDLE_RETURN_IF_ERROR(Reserve(&place, kHeaderBytes + sizes.late_part));
  }
  for (size_t turn = 0; turn < 2; ++turn) {
    for (size_t stage = 0; stage < sizes.sent.size(); ++stage) {
      HEDDLE_RETURN_IF_ERROR(Reserve(&sent_[stage][turn], sizes.sent[stage]));
    }
    for (size_t stage = 0; stage < sizes.received.size(); ++stage) {
      HEDDLE_RETURN_IF_ERROR(Reserve(&received_[stage][turn], sizes.received[stage]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> HostPeers::At(const Place& place, int64_t bytes) const {
  if (bytes <= place.bytes) return place.data;
  return absl::ResourceExhaustedError(
      absl::StrCat(noun_, " ", peers_.rank, " is to exchange ", bytes,
                   " bytes with others in an op, and has room for ", place.bytes));
}

HostPeers::Job HostPeers::JobOf(Kind kind, const Meeting& meeting) const {
  Job job = {
      .kind = kind, .root = meeting.root, .blocks = meeting.blocks, .meetings = meeting.meetings};
  std::copy(meeting.part_bytes.begin(), meeting.part_bytes.end(), job.part_bytes);
  job.bytes = meeting.has_part ? job.part_bytes[peers_.rank] : 0;
  return job;
}

absl::Status HostPeers::PlaceParts(const Place* places, Job* job) const {
  if (job->root >= 0 && job->root != peers_.rank) return absl::OkStatus();
  for (int32_t r = 0; r < peers_.world; ++r) {
    if (r == peers_.rank) continue;
    HEDDLE_ASSIGN_OR_RETURN(job->parts[r], At(places[r], job->part_bytes[r]));
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> HostPeers::Meet(const Meeting& meeting) {
  const size_t turn = n_met_++ % 2;
  Job job = JobOf(Kind::kMeet, meeting);
  HEDDLE_ASSIGN_OR_RETURN(job.own, At(own_parts_[turn], kHeaderBytes + job.bytes));
  HEDDLE_RETURN_IF_ERROR(PlaceParts(parts_[turn], &job));
  relay_->Add(this, job);
  return BehindHeader(job.own);
}

absl::StatusOr<void*> HostPeers::Begin(const Meeting& meeting) {
  Job job = JobOf(Kind::kBegin, meeting);
  HEDDLE_ASSIGN_OR_RETURN(job.own,
                          At(late_own_parts_[n_begun_++ % kLatePlaces], kHeaderBytes + job.bytes));
  relay_->Add(this, job);
  return BehindHeader(job.own);
}

absl::Status HostPeers::End(const Meeting& meeting) {
  Job job = JobOf(Kind::kEnd, meeting);
  HEDDLE_RETURN_IF_ERROR(PlaceParts(late_parts_[n_ended_++ % 2], &job));
  relay_->Add(this, job);
  return absl::OkStatus();
}

absl::StatusOr<void*> HostPeers::Sent(int32_t to, uint32_t number, int64_t bytes) {
  Job job = {.kind = Kind::kSend, .bytes = bytes, .other = to, .number = number};
  HEDDLE_ASSIGN_OR_RETURN(job.own, At(sent_[to][number % 2], bytes));
  relay_->Add(this, job);
  return job.own;
}

absl::Status HostPeers::Received(int32_t from, uint32_t number, int64_t bytes) {
  Job job = {.kind = Kind::kRecv, .bytes = bytes, .other = from, .number = number};
  HEDDLE_ASSIGN_OR_RETURN(job.own, At(received_[from][number % 2], bytes));
  relay_->Add(this, job);
  return absl::OkStatus();
}

void HostPeers::GiveUp() { Release(&peers_.note->abort, 1); }

bool HostPeers::is_given_up() const {
  return relay_->is_stopping() || Acquire(peers_.note->abort) != 0 || !communicator_->status().ok();
}

bool HostPeers::Perform(const Job& job) {
  ++n_performed_;
  switch (job.kind) {
    case Kind::kMeet:
      return PerformMeeting(job);
    case Kind::kBegin:
      return PerformBegin(job);
    case Kind::kEnd:
      return PerformEnd(job);
    case Kind::kSend:
      return PerformSend(job);
    case Kind::kRecv:
      return PerformRecv(job);
  }
  return false;
}

// Any block's letter says that what the device did before is done; block 0 is there in each kernel.
bool HostPeers::PerformMeeting(const Job& job) {
  const int32_t other = peers_.rank == 0 ? 1 : 0;
  const Letter& letter = peers_.boxes[other]->letters[0][meetings_[0] % 2][peers_.rank];
  const uint32_t number = meetings_[0] + 1;
  if (!AwaitDevice([&] { return Acquire(letter.number) == number; })) return false;
  const int64_t bytes = PutHeader(job, letter.what);
  const int64_t most =
      kHeaderBytes + *std::max_element(job.part_bytes, job.part_bytes + peers_.world);
  std::array<const void*, kMaxPeers> parts{};
  const bool is_met = job.root < 0 ? communicator_->Exchange(job.own, bytes, most, parts)
                                   : communicator_->Gather(job.own, bytes, most, job.root, parts);
  if (!is_met) return false;
  Answers answers;
  if (!TakeParts(job, letter.what, parts, &answers)) return false;
  WriteLetters(job, letter.what, answers);
  return true;
}

// Returns the bytes of the part with it.
int64_t HostPeers::PutHeader(const Job& job, uint32_t what) {
  const PartHeader header = {.bytes = job.bytes, .what = what, .unused = 0};
  std::memcpy(job.own, &header, sizeof(header));
  return kHeaderBytes + job.bytes;
}

// Brings the parts of others, if they are wanted, to where kernels read them. The kernel finds out
// that another rank does another op, and says so.
bool HostPeers::TakeParts(const Job& job, uint32_t what, std::span<const void* const> parts,
                          Answers* answers) {
  for (int32_t r = 0; r < peers_.world; ++r) {
    Answer& answer = (*answers)[static_cast<size_t>(r)];
    answer.what = what;
    if (job.parts[r] == nullptr) continue;  // this rank, or nobody wants it
    PartHeader header = {.bytes = -1, .what = what, .unused = 0};
    const auto* part = static_cast<const uint8_t*>(parts[static_cast<size_t>(r)]);
    if (part != nullptr) std::memcpy(&header, part, sizeof(header));
    answer.what = header.what;
    if (header.what != what || header.bytes == 0) continue;
    if (header.bytes != job.part_bytes[r]) {
      communicator_->Abort(absl::InvalidArgumentError(
          absl::StrCat(noun_, " ", r, " gave ", header.bytes, " bytes to an op in which ",
                       job.part_bytes[r], " are its part")));
      return false;
    }
    std::memcpy(job.parts[r], part + kHeaderBytes, static_cast<size_t>(header.bytes));
    answer.part = job.parts[r];
  }
  return true;
}

bool HostPeers::PerformBegin(const Job& job) {
  const int32_t other = peers_.rank == 0 ? 1 : 0;
  const uint32_t place = begun_ % kLatePlaces;
  const Letter& letter = peers_.boxes[other]->late[0][place][peers_.rank];
  const uint32_t number = ++begun_;
  if (!AwaitDevice([&] { return Acquire(letter.number) == number; })) return false;
  late_what_[place] = letter.what;
  return communicator_->BeginExchange(job.own, PutHeader(job, letter.what),
                                      kHeaderBytes + job.part_bytes[peers_.rank]);
}

// The last letter of a sum that has begun says that the sum before the one before that has ended.
bool HostPeers::PerformEnd(const Job& job) {
  std::array<const void*, kMaxPeers> parts{};
  if (!communicator_->EndExchange(parts)) return false;
  Answers answers;
  if (!TakeParts(job, late_what_[ended_[0] % kLatePlaces], parts, &answers)) return false;
  for (int32_t block = 0; block < job.blocks; ++block) {
    const uint32_t count = ended_[block]++;
    for (int32_t r = 0; r < peers_.world; ++r) {
      if (r == peers_.rank) continue;
      Letter& letter = peers_.boxes[peers_.rank]->late[block][count % kLatePlaces][r];
      letter.part = answers[static_cast<size_t>(r)].part;
      letter.what = answers[static_cast<size_t>(r)].what;
      Release(&letter.number, count + 1);
    }
  }
  return true;
}

// Earlier kernels have read what was in these places: the present one has written its letter. Only
// the first meeting of a kernel has parts.
void HostPeers::WriteLetters(const Job& job, uint32_t what, const Answers& answers) {
  for (int32_t block = 0; block < job.blocks; ++block) {
    for (int32_t i = 0; i < job.meetings; ++i) {
      const uint32_t count = meetings_[block]++;
      for (int32_t r = 0; r < peers_.world; ++r) {
        if (r == peers_.rank) continue;
        Letter& letter = peers_.boxes[peers_.rank]->letters[block][count % 2][r];
        const Answer later = {.part = nullptr, .what = what};
        const Answer& answer = i == 0 ? answers[static_cast<size_t>(r)] : later;
        letter.part = answer.part;
        letter.what = answer.what;
        Release(&letter.number, count + 1);
      }
    }
  }
}

bool HostPeers::PerformSend(const Job& job) {
  const Letter& letter = peers_.boxes[job.other]->rows[peers_.rank][job.number % kStagePlaces];
  if (!AwaitDevice([&] { return Acquire(letter.number) == job.number + 1; })) return false;
  if (!communicator_->Post(job.own, job.bytes, job.other)) return false;
  Release(&peers_.boxes[peers_.rank]->taken[job.other], job.number + 1);
  return true;
}

bool HostPeers::PerformRecv(const Job& job) {
  // The place is free when the last message but one was fetched.
  const uint32_t& taken = peers_.boxes[job.other]->taken[peers_.rank];
  const auto is_free = [&] { return static_cast<int32_t>(Acquire(taken) + 1 - job.number) >= 0; };
  if (!AwaitDevice(is_free)) return false;
  if (!communicator_->Recv(job.own, job.bytes, job.other)) return false;
  Letter& letter = peers_.boxes[peers_.rank]->rows[job.other][job.number % kStagePlaces];
  letter.part = job.own;
  letter.what = StageWord(job.bytes);
  Release(&letter.number, job.number + 1);
  return true;
}

HostRelay::HostRelay() {
  thread_ = std::thread([this] { Work(); });
  pthread_setname_np(thread_.native_handle(), "rank-relay");
}

HostRelay::~HostRelay() { Stop(); }

void HostRelay::Enter(HostPeers* group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void HostRelay::Add(HostPeers* group, const HostPeers::Job& job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({group, job});
  }
  changed_.notify_one();
}

void HostRelay::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_.exchange(true)) return;
    for (HostPeers* group : groups_) group->GiveUp();
    if (working_ != nullptr) {
      working_->communicator_->Abort(absl::CancelledError("the rank has left its group"));
    }
  }
  changed_.notify_one();
  thread_.join();
}

void HostRelay::Work() {
  std::unique_lock lock(mutex_);
  bool has_failed = false;
  while (true) {
    changed_.wait(lock, [this] { return is_stopping() || !jobs_.empty(); });
    if (is_stopping()) return;
    const Entry next = jobs_.front();
    jobs_.pop_front();
    if (has_failed) continue;
    working_ = next.group;
    lock.unlock();
    const bool is_done = next.group->Perform(next.job);
    lock.lock();
    working_ = nullptr;
    if (is_done) continue;
    has_failed = true;
    for (HostPeers* group : groups_) group->GiveUp();
  }
}

}  // namespace heddle::kernels::cuda
