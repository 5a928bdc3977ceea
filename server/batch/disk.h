// Files that survive the process: whole ones that are there or not, and ones that grow line by
// line, of which every whole line is there after a process was killed.
// Functions: any thread. Classes: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::server {

// The owner of a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Makes a folder that only this user may enter; it may be there already.
absl::Status MakeFolder(const std::string& path);
// Keeps other processes from using the folder, as long as the result lives. FAILED_PRECONDITION:
// one does.
absl::StatusOr<Descriptor> LockFolder(const std::string& path);

// Writes `text` to `path`, which has its old content, or none, until it has all of the new one.
// RESOURCE_EXHAUSTED: the disk is full.
absl::Status WriteWhole(const std::string& path, std::string_view text);
// NOT_FOUND: there is none. OUT_OF_RANGE: it has more than `max_bytes`.
absl::StatusOr<std::string> ReadWhole(const std::string& path, size_t max_bytes);

// For reading. NOT_FOUND: there is none.
absl::StatusOr<Descriptor> OpenFile(const std::string& path);
// Bytes of the file.
int64_t SizeOf(const Descriptor& file);
// Up to `max_bytes` from `offset` on; none at the end.
absl::StatusOr<std::string> ReadAt(const Descriptor& file, int64_t offset, size_t max_bytes);

// Reads a file's lines, without their ends.
class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path, size_t max_line_bytes);

  // Empty at the end. OUT_OF_RANGE: the line is longer than allowed; the next call goes on behind
  // it.
  absl::StatusOr<std::optional<std::string>> Next();
  // Number of the line that was read last, from 1 on.
  int64_t line() const { return line_; }
  // Where it ended, with its end; whether it had one.
  int64_t offset() const { return offset_; }
  bool ended() const { return ended_; }

 private:
  LineReader(Descriptor file, size_t max_line_bytes)
      : file_(std::move(file)), max_line_bytes_(max_line_bytes) {}

  absl::StatusOr<bool> Fill();

  Descriptor file_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;         // of what is not yet read in the buffer
  int64_t file_offset_ = 0;  // of the buffer's end
  int64_t offset_ = 0;
  int64_t line_ = 0;
  bool ended_ = false;
};

// A file that lines are added to.
class LineWriter {
 public:
  // Makes the file, or goes on behind its last whole line: what follows that is cut off.
  static absl::StatusOr<LineWriter> Open(const std::string& path);

  // Adds `line` and its end, both or neither.
  absl::Status Add(std::string_view line);
  // Everything is on the disk.
  absl::Status Sync();
  int64_t bytes() const { return bytes_; }

 private:
  LineWriter(Descriptor file, int64_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  Descriptor file_;
  int64_t bytes_ = 0;
};

}  // namespace heddle::server
