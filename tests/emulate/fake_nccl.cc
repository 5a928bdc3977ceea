// A library in NCCL's place for emulated devices, of one process and of several: it moves bytes
// through a file that the ranks of a communicator map, whose name is its id, and holds ranks to
// what NCCL demands of them. Ranks that call different ops, counts, types or peers, or the same in
// another order, get an error that says so, where NCCL would wait for ever or move wrong bytes.
//
// Every send waits until it is received, as NCCL's long ones do. HEDDLE_FAKE_NCCL has faults, with
// commas between them: version=N; NAME=N, by which a function returns N; async=N, the error of all
// communicators; nojoin, by which none is ever made; hang, by which no op ends.
// It has the functions that kernels/cuda/ranks/nccl_library.h uses.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulate/stream_port.h"

namespace {

using heddle::kernels::cuda::emulate::StreamPort;

constexpr int kMostRanks = 8;
constexpr size_t kMostBytes = size_t{16} << 20;  // of a message
enum Result {
  kSuccess = 0,
  kSystem = 2,
  kInternal = 3,
  kArgument = 4,
  kUsage = 5,
  kInProgress = 7
};
enum Kind : uint32_t { kAllGather = 1, kSendRecv = 2 };

// The value of "name=value" in HEDDLE_FAKE_NCCL; "1" for a name alone, "" without it.
std::string Fault(const std::string& name) {
  const char* all = std::getenv("HEDDLE_FAKE_NCCL");  // NOLINT(concurrency-mt-unsafe)
  std::string rest = all == nullptr ? "" : all;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    if (one == name) return "1";
    if (one.rfind(name + "=", 0) == 0) return one.substr(name.size() + 1);
  }
  return "";
}
int FaultOf(const char* name) {
  const std::string value = Fault(name);
  return value.empty() ? kSuccess : std::atoi(value.c_str());
}

// A message from a rank to another one: one at a time.
struct Mailbox {
  std::atomic<uint64_t> sent;
  std::atomic<uint64_t> taken;
  uint32_t kind;
  int32_t type;
  uint64_t count;
  uint64_t collective;  // how many collectives the sender has begun before
  uint8_t data[kMostBytes];
};

// In the file. It is sparse: what is not touched takes no room.
struct Shared {
  std::atomic<int32_t> joined[kMostRanks];
  std::atomic<uint32_t> has_finding;
  char finding[400];
  Mailbox boxes[kMostRanks][kMostRanks];  // [from][to]
};

struct Message {
  Kind kind = kSendRecv;
  int peer = 0;
  int type = 0;
  size_t count = 0;
  const void* from = nullptr;  // of a send
  void* to = nullptr;          // of a receive
  uint64_t collective = 0;
};

}  // namespace

// ncclComm_t's. Work that is under way keeps it.
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name.
struct ncclComm {
  ~ncclComm() {
    if (shared != nullptr) munmap(shared, sizeof(Shared));
    if (owns_file) unlink(file.c_str());
  }
  bool IsComplete() const {
    if (!Fault("nojoin").empty()) return false;
    for (int r = 0; r < world; ++r) {
      if (shared->joined[r].load() == 0) return false;
    }
    return true;
  }
  void Find(const std::string& what) {
    const std::string text = "rank " + std::to_string(rank) + ": " + what;
    std::snprintf(shared->finding, sizeof(shared->finding), "%s", text.c_str());
    shared->has_finding.store(1);
    std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  }
  // False: the communicator was aborted, or somebody has found something.
  template <typename Condition>
  bool Wait(const Condition& is_true) const {
    while (!is_true()) {
      if (aborted.load() || shared->has_finding.load() != 0) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    return true;
  }
  void Put(const Message& message);
  bool Take(const Message& message);
  void Run(const std::vector<Message>& messages);

  int rank = 0;
  int world = 1;
  std::string file;
  bool owns_file = false;
  Shared* shared = nullptr;
  uint64_t collectives = 0;  // that were called
  int calls = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> under_way{0};  // ops that have begun on the device
  uint64_t device = 0;
  std::atomic<bool> settles{false};  // the last call is said to be under way once
  std::shared_ptr<ncclComm> self;    // until it is aborted
};

// One message of each pair is under way at a time: the one before was taken.
void ncclComm::Put(const Message& message) {
  Mailbox& box = shared->boxes[rank][message.peer];
  if (!Wait([&] { return box.taken.load() == box.sent.load(); })) return;
  box.kind = message.kind;
  box.type = message.type;
  box.count = message.count;
  box.collective = message.collective;
  std::memcpy(box.data, message.from, message.count);
  box.sent.fetch_add(1);
}

bool ncclComm::Take(const Message& message) {
  Mailbox& box = shared->boxes[message.peer][rank];
  if (!Wait([&] { return box.sent.load() == box.taken.load() + 1; })) return false;
  const auto differs = [&](const char* what, uint64_t own, uint64_t other) {
    if (own == other) return false;
    Find(std::string(what) + " is " + std::to_string(own) + " here and " + std::to_string(other) +
         " on rank " + std::to_string(message.peer));
    return true;
  };
  if (differs("the op", message.kind, box.kind) || differs("the count", message.count, box.count) ||
      differs("the type", static_cast<uint64_t>(message.type), static_cast<uint64_t>(box.type)) ||
      differs("the number of collectives before", message.collective, box.collective)) {
    return false;
  }
  std::memcpy(message.to, box.data, box.count);
  box.taken.fetch_add(1);
  return true;
}

// All messages of a call at once.
void ncclComm::Run(const std::vector<Message>& messages) {
  if (!Fault("hang").empty()) Wait([] { return false; });
  for (const Message& one : messages) {
    if (one.from != nullptr) Put(one);
  }
  for (const Message& one : messages) {
    if (one.to != nullptr && !Take(one)) return;
  }
  for (const Message& one : messages) {
    if (one.from == nullptr) continue;
    const Mailbox& box = shared->boxes[rank][one.peer];
    if (!Wait([&] { return box.taken.load() == box.sent.load(); })) return;
  }
}

namespace {

// The calls between GroupStart and GroupEnd, of this thread.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  void* stream = nullptr;
  std::vector<Message> messages;
  std::vector<std::shared_ptr<ncclComm>> ended;
};
thread_local Group group;

// The communicators of all devices of this process.
struct Comms {
  std::mutex mutex;
  std::vector<std::weak_ptr<ncclComm>> all;  // GUARDED_BY(mutex)
};
Comms& AllComms() {
  static auto* comms = new Comms;
  return *comms;
}

// Frees what was aborted, as NCCL does: with memory of the device, for which all of its ops, those
// of other communicators included, have to end. `device`: the thread that has made them.
void EndAll() {
  const std::vector<std::shared_ptr<ncclComm>> ended = std::exchange(group.ended, {});
  for (const std::shared_ptr<ncclComm>& one : ended) {
    std::vector<std::shared_ptr<ncclComm>> others;
    {
      const std::lock_guard lock(AllComms().mutex);
      for (const std::weak_ptr<ncclComm>& each : AllComms().all) {
        if (auto comm = each.lock(); comm != nullptr && comm->device == one->device) {
          others.push_back(std::move(comm));
        }
      }
    }
    for (const std::shared_ptr<ncclComm>& other : others) {
      while (other->under_way.load() > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      }
    }
  }
}

struct Work {
  std::shared_ptr<ncclComm> comm;
  std::vector<Message> messages;
};

// Some calls are said to be under way still, as NCCL does when it connects.
int Enqueue(ncclComm* comm, void* stream, std::vector<Message> messages) {
  if (!comm->IsComplete()) return kUsage;
  auto* port = static_cast<StreamPort*>(stream);
  port->enqueue(
      port,
      [](void* argument) {
        const std::unique_ptr<Work> work(static_cast<Work*>(argument));
        ++work->comm->under_way;
        if (!work->comm->aborted.load()) work->comm->Run(work->messages);
        --work->comm->under_way;
      },
      new Work{comm->self, std::move(messages)});
  comm->settles = ++comm->calls % 3 == 0;
  return comm->settles ? kInProgress : kSuccess;
}

int Check(const ncclComm* comm, int peer, size_t count, const void* data) {
  if (comm == nullptr || comm->aborted.load() || peer < 0 || peer >= comm->world) return kArgument;
  if (count == 0 || count > kMostBytes || data == nullptr) return kArgument;
  return kSuccess;
}

int AddToGroup(ncclComm* comm, void* stream, const Message& message) {
  if (group.depth == 0) return Enqueue(comm, stream, {message});
  if (group.comm != nullptr && (group.comm != comm || group.stream != stream)) return kUsage;
  group.comm = comm;
  group.stream = stream;
  group.messages.push_back(message);
  return kSuccess;
}

std::string NewName() {
  static std::atomic<int> count{0};
  const char* folder = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return std::string(folder == nullptr ? "/tmp" : folder) + "/heddle-fake-nccl-" +
         std::to_string(getpid()) + "-" + std::to_string(count++);
}

}  // namespace

extern "C" {

// NOLINTNEXTLINE(readability-identifier-naming)
struct ncclUniqueId {
  char bytes[128];
};

// NOLINTNEXTLINE(readability-identifier-naming)
struct ncclConfig {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int blocking;
  int cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
};

int ncclGetVersion(int* version) {
  const std::string other = Fault("version");
  *version = other.empty() ? 22809 : std::atoi(other.c_str());
  return FaultOf("ncclGetVersion");
}

int ncclGetUniqueId(ncclUniqueId* id) {
  const std::string name = NewName();
  const int file = open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kSystem;
  close(file);
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->bytes, sizeof(id->bytes), "%s", name.c_str());
  return FaultOf("ncclGetUniqueId");
}

int ncclCommInitRankConfig(ncclComm** comm, int world, ncclUniqueId id, int rank,
                           const ncclConfig* config) {
  const bool is_right = config != nullptr && config->magic == 0xcafebeef &&
                        config->version >= 21800 && config->size >= sizeof(ncclConfig) &&
                        config->blocking == 0 && config->min_ctas >= 1 &&
                        config->max_ctas >= config->min_ctas && config->traffic_class == INT32_MIN;
  if (!is_right || world < 1 || world > kMostRanks || rank < 0 || rank >= world) return kArgument;
  if (const int fault = FaultOf("ncclCommInitRankConfig"); fault != kSuccess) return fault;
  auto made = std::make_shared<ncclComm>();
  made->rank = rank;
  made->world = world;
  made->file = id.bytes;
  made->owns_file = rank == 0;
  const int file = open(id.bytes, O_RDWR | O_CLOEXEC);
  if (file < 0) return kSystem;
  void* data = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (data == MAP_FAILED) return kSystem;
  made->shared = static_cast<Shared*>(data);
  if (made->shared->joined[rank].exchange(1) != 0) return kUsage;  // the rank was there before
  made->self = made;
  made->device = std::hash<std::thread::id>()(std::this_thread::get_id());
  {
    const std::lock_guard lock(AllComms().mutex);
    std::erase_if(AllComms().all, [](const auto& comm) { return comm.expired(); });
    AllComms().all.push_back(made);
  }
  *comm = made.get();
  return kInProgress;
}

int ncclCommAbort(ncclComm* comm) {
  comm->aborted.store(true);
  group.ended.push_back(std::move(comm->self));
  if (group.depth == 0) EndAll();
  return kSuccess;
}

int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  *error = FaultOf("async");
  if (*error != kSuccess) return kSuccess;
  if (comm->owns_file && comm->IsComplete()) {  // all have it
    unlink(comm->file.c_str());
    comm->owns_file = false;
  }
  if (comm->shared->has_finding.load() != 0) {
    *error = kInternal;
  } else if (!comm->IsComplete() || comm->settles.exchange(false)) {
    *error = kInProgress;
  }
  return FaultOf("ncclCommGetAsyncError");
}

int ncclGroupStart() {
  ++group.depth;
  return FaultOf("ncclGroupStart");
}

int ncclGroupEnd() {
  if (group.depth == 0) return kUsage;
  if (--group.depth > 0) return kSuccess;
  EndAll();
  const Group own = std::exchange(group, {});
  if (const int fault = FaultOf("ncclGroupEnd"); fault != kSuccess) return fault;
  return own.messages.empty() ? kSuccess : Enqueue(own.comm, own.stream, own.messages);
}

int ncclAllGather(const void* part, void* whole, size_t count, int type, ncclComm* comm,
                  void* stream) {
  const int wrong = Check(comm, 0, count, part);
  if (wrong != kSuccess || type != 1 || group.depth > 0) return kArgument;
  if (const int fault = FaultOf("ncclAllGather"); fault != kSuccess) return fault;
  std::vector<Message> messages;
  auto* to = static_cast<uint8_t*>(whole);
  const uint64_t collective = comm->collectives++;
  // The own part goes the same way.
  for (int r = 0; r < comm->world; ++r) {
    const Message send = {.kind = kAllGather,
                          .peer = r,
                          .type = type,
                          .count = count,
                          .from = part,
                          .to = nullptr,
                          .collective = collective};
    Message receive = send;
    receive.from = nullptr;
    receive.to = to + static_cast<size_t>(r) * count;
    messages.push_back(send);
    messages.push_back(receive);
  }
  return Enqueue(comm, stream, std::move(messages));
}

int ncclSend(const void* data, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  const int wrong = Check(comm, peer, count, data);
  if (wrong != kSuccess || type != 1) return kArgument;
  if (const int fault = FaultOf("ncclSend"); fault != kSuccess) return fault;
  return AddToGroup(comm, stream,
                    {.peer = peer,
                     .type = type,
                     .count = count,
                     .from = data,
                     .to = nullptr,
                     .collective = comm->collectives});
}

int ncclRecv(void* data, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  const int wrong = Check(comm, peer, count, data);
  if (wrong != kSuccess || type != 1) return kArgument;
  if (const int fault = FaultOf("ncclRecv"); fault != kSuccess) return fault;
  return AddToGroup(comm, stream,
                    {.peer = peer,
                     .type = type,
                     .count = count,
                     .from = nullptr,
                     .to = data,
                     .collective = comm->collectives});
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSystem:
      return "unhandled system error";
    case kInternal:
      return "internal error";
    case kArgument:
      return "invalid argument";
    case kUsage:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    default:
      return "unhandled cuda error";
  }
}

const char* ncclGetLastError(ncclComm* comm) {
  return comm != nullptr && comm->shared != nullptr && comm->shared->has_finding.load() != 0
             ? comm->shared->finding
             : "";
}

}  // extern "C"
