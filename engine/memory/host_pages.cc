#include "engine/memory/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/memory/host_memory.h"

namespace heddle::engine {
namespace {

absl::Status NoRoom(int64_t bytes, const std::string& where, const std::string& reason) {
  return absl::ResourceExhaustedError(
      absl::StrCat("--host-kv-memory asks for ", bytes, " bytes ", where, ": ", reason));
}

// Opens an unnamed file and allocates `bytes` on its disk: if the disk filled up later, a page
// fault would end the process.
absl::StatusOr<int> OpenFile(const std::string& directory, int64_t bytes) {
  std::string path = directory + "/heddle-kv-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--disk-kv: no file can be made in ", directory, ": ", std::strerror(errno)));
  }
  unlink(path.c_str());
  if (int error = posix_fallocate(file, 0, bytes); error != 0) {
    close(file);
    return NoRoom(bytes, absl::StrCat("on the disk of ", directory), std::strerror(error));
  }
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostPages>> HostPages::Create(int32_t num_slots, int64_t page_bytes,
                                                             const std::string& directory) {
  const int64_t bytes = num_slots * page_bytes;
  if (bytes == 0) return std::unique_ptr<HostPages>(new HostPages(nullptr, 0, 0));
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  int file = -1;
  if (!directory.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(file, OpenFile(directory, bytes));
    flags = MAP_SHARED;
  } else if (int64_t free = ReadHostMemory().available_bytes; free < bytes) {
    return NoRoom(bytes, "of memory", absl::StrCat(free, " are free"));
  }
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, file, 0);
  if (file >= 0) close(file);
  if (base == MAP_FAILED) return NoRoom(bytes, "of memory", std::strerror(errno));
  return std::unique_ptr<HostPages>(
      new HostPages(static_cast<std::byte*>(base), bytes, page_bytes));
}

HostPages::~HostPages() {
  if (bytes_ > 0) munmap(base_, static_cast<size_t>(bytes_));
}

}  // namespace heddle::engine
