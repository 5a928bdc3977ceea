// A file mapped into memory for reading. The kernel pages it in on first touch, so that opening a
// checkpoint of any size costs no memory of this process and several processes share one copy.
//
// Ownership: the mapping lives as long as the object; views into bytes() survive a move of it.
// Thread-safety: immutable after Open; all methods are const and safe to call from any thread.
// Limit: a file that another process truncates while it is mapped raises SIGBUS on access, which
// ends the process with a message (mapping_faults.h). Model files are replaced by renaming, not
// rewritten in place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "absl/status/statusor.h"

namespace heddle::engine {

class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, or another error of the system; FAILED_PRECONDITION if the path
  // is not a regular file. The message names the path. An empty file maps to empty bytes.
  static absl::StatusOr<MappedFile> Open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  // Hints to the kernel about `part`, a view into bytes(): WillNeed says that it is about to be
  // read, the other that it will not be needed soon (its pages may leave this process; reading them
  // again is correct but slow).
  void WillNeed(std::span<const std::byte> part) const;
  void DontNeed(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  void Advise(std::span<const std::byte> part, int advice) const;

  std::span<const std::byte> bytes_;
};

}  // namespace heddle::engine
