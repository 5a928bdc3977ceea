#include "kernels/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/control_group.h"
#include "kernels/memory_nodes.h"

namespace heddle::kernels {
namespace {

constexpr size_t kSmallPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

class MappedBuffer final : public Buffer {
 public:
  MappedBuffer(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  ~MappedBuffer() override { munmap(data_, static_cast<size_t>(bytes_)); }
  MappedBuffer(const MappedBuffer&) = delete;
  MappedBuffer& operator=(const MappedBuffer&) = delete;
  void* data() override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  void* data_;
  int64_t bytes_;
};

int64_t MachineAvailable() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; in >> key >> kib && std::getline(in, unit);) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnlimited;
}

// Maps `bytes` of zeros, or returns MAP_FAILED. Larger ones begin at a border of huge pages, so
// that all but the rest is in such pages: with 4 KB pages, each page that a stream reaches costs a
// walk of two tables in a virtual machine.
void* MapMemory(size_t bytes) {
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED || slack == 0) return mapped;
  auto* begin = static_cast<char*>(mapped);
  const size_t before = (slack - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  const size_t pages = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (before > 0) munmap(begin, before);
  if (slack > before) munmap(begin + before + pages, slack - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  static const std::vector<int> nodes = MemoryNodes();
  if (nodes.size() > 1) InterleaveOverNodes(begin + before, pages, nodes);
  return begin + before;
}

}  // namespace

int64_t AvailableHostBytes() {
  return std::min(MachineAvailable(), base::ReadControlGroup().memory_available);
}

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(int64_t bytes, const char* what) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat(what, ": ", bytes, " bytes"));
  bytes = std::max<int64_t>(bytes, 64);
  // For small buffers reading /proc would cost too much.
  const auto size = static_cast<size_t>(bytes);
  int64_t available = size >= kHugePage ? AvailableHostBytes() : kUnlimited;
  void* data = bytes <= available ? MapMemory(size) : MAP_FAILED;
  if (data == MAP_FAILED) {
    const char* why = bytes <= available
                          ? "; a limit of this process is less (ulimit -v, LimitAS=, overcommit)"
                          : "";
    return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", bytes, " bytes of memory, ",
                                                     AvailableHostBytes(), " are available", why));
  }
  return std::make_unique<MappedBuffer>(data, bytes);
}

}  // namespace heddle::kernels
