// The batches of all clients: one file each, in a folder, and their present state in memory.
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
#include "server/batch/batch_figures.h"
#include "server/batch/batch_record.h"

namespace heddle::server {

class BatchStore {
 public:
  // Limits for each owner: on batches that have not ended, and on those that are remembered. The
  // oldest ones that have ended are forgotten first.
  static constexpr size_t kMaxOpen = 100;
  static constexpr size_t kMaxKept = 2000;

  // `folder` is there, and nobody else uses it.
  static absl::StatusOr<std::unique_ptr<BatchStore>> Open(std::string folder);

  // Adds a new batch. RESOURCE_EXHAUSTED: its owner has too many.
  absl::Status Add(const BatchRecord& batch);
  // Replaces a batch, in memory and on the disk, or in memory alone. One that was cancelled since
  // stays so, unless it ends.
  absl::Status Save(const BatchRecord& batch);
  void Show(BatchRecord batch);

  // Changes a batch's status to kCancelling, if it is one that can be, and returns it as it is
  // then. NOT_FOUND: its owner has none of that id. INVALID_ARGUMENT: it has ended.
  absl::StatusOr<BatchRecord> Cancel(std::string_view id, uint64_t owner, int64_t now);

  // nullptr: there is none of that owner.
  std::shared_ptr<const BatchRecord> Find(std::string_view id, uint64_t owner) const;
  // In the order of their creation.
  std::vector<std::shared_ptr<const BatchRecord>> List(uint64_t owner) const;
  std::vector<std::shared_ptr<const BatchRecord>> Unfinished() const;
  // Sets what a figure says of batches, and their lines without a result.
  void Count(BatchFigures* figures) const;

 private:
  using Kept = std::shared_ptr<const BatchRecord>;

  explicit BatchStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Load();
  absl::Status WriteNewest(const std::string& id);
  std::string PathOf(const std::string& id) const { return folder_ + "/" + id + ".json"; }
  template <typename Wanted>
  std::vector<Kept> Select(const Wanted& wanted) const;
  void ForgetOldest(uint64_t owner);

  const std::string folder_;
  // Held while a batch's file is written, so that the newest state is what stays on the disk.
  // Taken before mutex_.
  std::mutex writing_;
  mutable std::mutex mutex_;
  std::map<std::string, Kept, std::less<>> batches_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
