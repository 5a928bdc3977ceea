#include "server/batch/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/message.h"
#include "base/status.h"

namespace heddle::server {
namespace {

constexpr mode_t kOwnFolder = 0700;
constexpr mode_t kOwnFile = 0600;
constexpr size_t kReadBytes = size_t{64} << 10;

// Clients may read it, so it does not say where the folder is.
absl::Status Failed(std::string_view what, int error) {
  const std::string message = base::StrCat("cannot ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

// Writes all of `text` at the file's end. Returns 0 or the error.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  const Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened && fsync(opened.get()) == 0 ? 0 : errno;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MakeFolder(const std::string& path) {
  struct stat found {};
  if (mkdir(path.c_str(), kOwnFolder) == 0) return absl::OkStatus();
  const int error = errno;
  const bool is_there = stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  return error == EEXIST && is_there ? absl::OkStatus()
                                     : Failed(base::StrCat("make the folder ", path), error);
}

absl::StatusOr<Descriptor> LockFolder(const std::string& path) {
  const std::string name = path + "/lock";
  Descriptor lock(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOwnFile));
  if (!lock) return Failed(base::StrCat("make ", name), errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return Failed(base::StrCat("lock ", name), errno);
  return absl::FailedPreconditionError(
      base::StrCat("the folder ", path, " is in use by another server"));
}

absl::Status WriteWhole(const std::string& path, std::string_view text) {
  const std::string draft = path + ".new";
  int error = 0;
  {
    const Descriptor file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnFile));
    if (!file) return Failed("write a file", errno);
    error = WriteAll(file.get(), text);
    if (error == 0 && fsync(file.get()) != 0) error = errno;
  }
  if (error == 0 && rename(draft.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(draft.c_str());
    return Failed("write a file", error);
  }
  error = SyncFolderOf(path);
  return error == 0 ? absl::OkStatus() : Failed("write a file", error);
}

absl::StatusOr<std::string> ReadWhole(const std::string& path, size_t max_bytes) {
  HEDDLE_ASSIGN_OR_RETURN(const Descriptor file, OpenFile(path));
  if (SizeOf(file) > static_cast<int64_t>(max_bytes)) {
    return absl::OutOfRangeError(base::StrCat("a file has more than ", max_bytes, " bytes"));
  }
  return ReadAt(file, 0, max_bytes);
}

absl::StatusOr<Descriptor> OpenFile(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return absl::NotFoundError("there is no such file");
  if (!file) return Failed("read a file", errno);
  return file;
}

int64_t SizeOf(const Descriptor& file) {
  struct stat found {};
  return fstat(file.get(), &found) == 0 ? found.st_size : 0;
}

absl::StatusOr<std::string> ReadAt(const Descriptor& file, int64_t offset, size_t max_bytes) {
  const int64_t left = std::max<int64_t>(0, SizeOf(file) - offset);
  std::string text(std::min(max_bytes, static_cast<size_t>(left)), '\0');
  size_t taken = 0;
  while (taken < text.size()) {
    const ssize_t got = pread(file.get(), text.data() + taken, text.size() - taken,
                              static_cast<off_t>(offset + static_cast<int64_t>(taken)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InternalError(base::StrCat("reading failed: ", std::strerror(errno)));
    if (got == 0) break;  // it has become shorter
    taken += static_cast<size_t>(got);
  }
  text.resize(taken);
  return text;
}

absl::StatusOr<LineReader> LineReader::Open(const std::string& path, size_t max_line_bytes) {
  HEDDLE_ASSIGN_OR_RETURN(Descriptor file, OpenFile(path));
  return LineReader(std::move(file), max_line_bytes);
}

// Returns false at the end of the file.
absl::StatusOr<bool> LineReader::Fill() {
  HEDDLE_ASSIGN_OR_RETURN(const std::string more, ReadAt(file_, file_offset_, kReadBytes));
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_.append(more);
  file_offset_ += static_cast<int64_t>(more.size());
  return !more.empty();
}

absl::StatusOr<std::optional<std::string>> LineReader::Next() {
  bool is_too_long = false;
  size_t looked_at = 0;  // behind begin_, without a line's end
  while (true) {
    const size_t end = buffer_.find('\n', begin_ + looked_at);
    const bool has_end = end != std::string::npos;
    bool is_last = false;
    if (!has_end) {
      looked_at = buffer_.size() - begin_;
      if (looked_at > max_line_bytes_) {  // only its length matters from here on
        is_too_long = true;
        begin_ = buffer_.size();
        looked_at = 0;
      }
      HEDDLE_ASSIGN_OR_RETURN(const bool has_more, Fill());
      if (has_more) continue;
      is_last = true;
      if (begin_ == buffer_.size() && !is_too_long) return std::nullopt;
    }
    const size_t line_end = is_last ? buffer_.size() : end;
    std::string line = buffer_.substr(begin_, line_end - begin_);
    begin_ = line_end + (is_last ? 0 : 1);
    ++line_;
    ended_ = !is_last;
    offset_ = file_offset_ - static_cast<int64_t>(buffer_.size() - begin_);
    if (is_too_long || line.size() > max_line_bytes_) {
      return absl::OutOfRangeError(
          base::StrCat("the line has more than ", max_line_bytes_, " bytes"));
    }
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }
}

absl::StatusOr<LineWriter> LineWriter::Open(const std::string& path) {
  Descriptor file(
      open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, kOwnFile));
  if (!file) return Failed("write a file", errno);
  int64_t end = SizeOf(file);
  const int64_t size = end;
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(kReadBytes));
    HEDDLE_ASSIGN_OR_RETURN(const std::string tail,
                            ReadAt(file, begin, static_cast<size_t>(end - begin)));
    const size_t found = tail.rfind('\n');
    end = begin + (found == std::string::npos ? 0 : static_cast<int64_t>(found) + 1);
    if (found != std::string::npos) break;
  }
  if (end != size && ftruncate(file.get(), static_cast<off_t>(end)) != 0) {
    return Failed("write a file", errno);
  }
  return LineWriter(std::move(file), end);
}

absl::Status LineWriter::Add(std::string_view line) {
  const std::string text = base::StrCat(line, "\n");
  const int error = WriteAll(file_.get(), text);
  if (error == 0) {
    bytes_ += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }
  // The part of the line that was written would be taken for the beginning of the next one.
  const bool cut = ftruncate(file_.get(), static_cast<off_t>(bytes_)) == 0;
  return Failed(cut ? "add a line to a file" : "add a whole line to a file", error);
}

absl::Status LineWriter::Sync() {
  return fsync(file_.get()) == 0 ? absl::OkStatus() : Failed("write a file", errno);
}

}  // namespace heddle::server
