#include "engine/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/files/mapping_faults.h"

namespace heddle::engine {
namespace {

// Closes a descriptor on every way out; the mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; no effect on regular files.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path.string()));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path.string()));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), " is not a regular file"));
  }
  size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile();  // mmap refuses empty ranges
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot map ", path.string(), " (", size, " bytes) into memory"));
  }
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(address), size);
  RememberMapping(bytes, path);
  return MappedFile(bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  ForgetMapping(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::WillNeed(std::span<const std::byte> part) const { Advise(part, MADV_WILLNEED); }

void MappedFile::DontNeed(std::span<const std::byte> part) const { Advise(part, MADV_DONTNEED); }

void MappedFile::Advise(std::span<const std::byte> part, int advice) const {
  if (part.empty()) return;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  // madvise needs a page's address; the mapping begins at one, so the rounded part stays inside it.
  size_t into_page = reinterpret_cast<uintptr_t>(part.data()) % page;
  void* begin = const_cast<std::byte*>(part.data() - into_page);
  ::madvise(begin, part.size() + into_page, advice);
}

}  // namespace heddle::engine
