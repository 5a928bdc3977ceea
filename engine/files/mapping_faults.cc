#include "engine/files/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "base/bounded_write.h"

namespace heddle::engine {
namespace {

constexpr size_t kMaxMappings = 2048;  // the largest models come in a few hundred files
constexpr size_t kMaxPathBytes = 1024;

// The signal handler reads it, so it has no lock: `begin` is set last, and cleared first.
struct Mapping {
  std::atomic<uintptr_t> begin = 0;  // 0: free
  std::atomic<size_t> size = 0;
  char path[kMaxPathBytes] = {};
};

struct Mappings {
  std::array<Mapping, kMaxMappings> all;
  std::mutex mutex;  // held while entries change
};

// A signal handler can reach only statics. Unused pages of this one take no memory.
Mappings& Known() {
  static Mappings mappings;
  return mappings;
}
Mappings* known = nullptr;  // set before the handler is

class Message {
 public:
  void Append(std::string_view text) {
    const size_t count = std::min(text.size(), sizeof(text_) - size_);
    std::memcpy(text_ + size_, text.data(), count);
    size_ += count;
  }
  std::string_view text() const { return {text_, size_}; }

 private:
  char text_[kMaxPathBytes + 512] = {};
  size_t size_ = 0;
};

const Mapping* Find(uintptr_t address) {
  for (const Mapping& mapping : known->all) {
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address - begin < mapping.size.load()) return &mapping;
  }
  return nullptr;
}

void OnBusError(int number, siginfo_t* info, void* /*context*/) {
  const Mapping* mapping = Find(reinterpret_cast<uintptr_t>(info->si_addr));
  if (mapping == nullptr) {  // the fault is raised again as soon as this returns
    signal(number, SIG_DFL);
    return;
  }
  Message message;
  message.Append("heddle: ");
  message.Append(mapping->path);
  message.Append(
      " became shorter while it was in use, or its disk cannot be read: nothing can go on without "
      "it. Check the file, and replace model files by renaming new ones over them, never by "
      "writing into them\n");
  constexpr std::chrono::milliseconds kLimit{500};
  base::WriteWithin(STDERR_FILENO, message.text(), kLimit);
  _exit(1);
}

}  // namespace

void ReportMappingFaults() {
  known = &Known();
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

void RememberMapping(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  Mappings& mappings = Known();
  const std::string name = path.string().substr(0, kMaxPathBytes - 1);
  std::lock_guard lock(mappings.mutex);
  for (Mapping& mapping : mappings.all) {
    if (mapping.begin.load() != 0) continue;
    std::memcpy(mapping.path, name.c_str(), name.size() + 1);
    mapping.size = bytes.size();
    mapping.begin.store(reinterpret_cast<uintptr_t>(bytes.data()), std::memory_order_release);
    return;
  }
}

void ForgetMapping(std::span<const std::byte> bytes) {
  Mappings& mappings = Known();
  std::lock_guard lock(mappings.mutex);
  for (Mapping& mapping : mappings.all) {
    if (mapping.begin.load() == reinterpret_cast<uintptr_t>(bytes.data())) mapping.begin = 0;
  }
}

}  // namespace heddle::engine
