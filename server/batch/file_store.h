// The files of /v1/files, in a folder: each has its content and, in a file beside it, what it is.
// A content without a description does not exist yet, or no longer: so a file appears at once, and
// a process that ends in the middle leaves nothing half.
//
// Files belong to an API key, and others do not find them. Ids are made here and never taken from
// clients, so that no path can be chosen.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/batch/disk.h"

namespace heddle::server {

struct StoredFile {
  std::string id;
  uint64_t owner = 0;  // owner of the API key; 0: no keys
  int64_t bytes = 0;
  int64_t created = 0;  // seconds since 1970
  int64_t expires = 0;  // the same; 0: never
  std::string name;
  std::string purpose;  // "batch", "batch_output"...
};

// As the API shows it.
std::string FileJson(const StoredFile& file);

class FileStore {
 public:
  struct Limits {
    int64_t max_bytes = int64_t{4} << 30;  // of all files
    size_t max_files = 10000;              // of one owner
  };

  // `folder` is there, and nobody else uses it.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(std::string folder, const Limits& limits);

  // Keeps `content` as a new file; `file` has no id yet. RESOURCE_EXHAUSTED: no room.
  absl::StatusOr<StoredFile> Add(StoredFile file, std::string_view content);

  // A file that grows: an id for it, the path of its content, a check that there is room for more
  // of it, and, once its content is whole, its publication.
  std::string NewId() const;
  std::string PathOf(const std::string& id) const { return folder_ + "/" + id; }
  absl::Status Grow(int64_t bytes);
  absl::Status Publish(StoredFile file);

  // Empty: there is none of that owner.
  std::shared_ptr<const StoredFile> Find(std::string_view id, uint64_t owner) const;
  // In the order of their creation.
  std::vector<std::shared_ptr<const StoredFile>> List(uint64_t owner) const;
  // Its content; who has it open keeps it when the file is deleted.
  absl::StatusOr<Descriptor> OpenContent(const StoredFile& file) const;
  bool Delete(std::string_view id, uint64_t owner);

  void DeleteExpired(int64_t now);
  // Deletes content that belongs to no file and is not in `growing`: what a process left that
  // ended in the middle.
  void DeleteOrphans(const std::vector<std::string>& growing);

  int64_t bytes() const;
  int64_t max_bytes() const { return limits_.max_bytes; }

 private:
  FileStore(std::string folder, const Limits& limits)
      : folder_(std::move(folder)), limits_(limits) {}

  absl::Status Load();
  absl::Status Describe(const StoredFile& file) const;
  size_t CountLocked(uint64_t owner) const;

  const std::string folder_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const StoredFile>, std::less<>>
      files_;          // GUARDED_BY(mutex_)
  int64_t bytes_ = 0;  // GUARDED_BY(mutex_)
};

// An id of `prefix` and 32 hexadecimal digits that nobody can guess.
std::string RandomId(std::string_view prefix);
int64_t UnixNow();

}  // namespace heddle::server
