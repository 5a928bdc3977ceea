#include "kernels/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace heddle::kernels {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
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

// The number in a one-line file, or `fallback` ("max", or no such file).
int64_t ReadNumber(const char* path, int64_t fallback) {
  std::ifstream in(path);
  std::string word;
  int64_t value = 0;
  return (in >> word) && absl::SimpleAtoi(word, &value) ? value : fallback;
}

int64_t MachineAvailable() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; in >> key >> kib && std::getline(in, unit);) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnlimited;
}

int64_t GroupAvailable() {
  int64_t limit = ReadNumber("/sys/fs/cgroup/memory.max", kUnlimited);
  if (limit == kUnlimited) return kUnlimited;
  return std::max<int64_t>(0, limit - ReadNumber("/sys/fs/cgroup/memory.current", 0));
}

}  // namespace

int64_t AvailableHostBytes() { return std::min(MachineAvailable(), GroupAvailable()); }

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(int64_t bytes, const char* what) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat(what, ": ", bytes, " bytes"));
  bytes = std::max<int64_t>(bytes, 64);
  // Reading /proc costs more than small buffers are worth.
  int64_t available = bytes >= kHugePage ? AvailableHostBytes() : kUnlimited;
  void* data = MAP_FAILED;
  if (bytes <= available) {
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", bytes, " bytes of memory, ",
                                                     AvailableHostBytes(), " are available"));
  }
  if (bytes >= kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return std::make_unique<MappedBuffer>(data, bytes);
}

}  // namespace heddle::kernels
