#include "server/batch/batch_store.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/batch/disk.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxRecordBytes = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<BatchStore>> BatchStore::Open(std::string folder) {
  auto store = std::unique_ptr<BatchStore>(new BatchStore(std::move(folder)));
  HEDDLE_RETURN_IF_ERROR(store->Load());
  return store;
}

// A file that is no batch is left alone.
absl::Status BatchStore::Load() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".json")) continue;
    absl::StatusOr<std::string> text = ReadWhole(path, kMaxRecordBytes);
    if (!text.ok()) continue;
    absl::StatusOr<BatchRecord> batch = ReadDiskJson(*text);
    if (!batch.ok() || batch->id != entry.path().stem().string()) continue;
    const std::string id = batch->id;
    batches_[id] = std::make_shared<const BatchRecord>(*std::move(batch));
  }
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      base::StrCat("cannot read the folder ", folder_, ": ", error.message()));
}

absl::Status BatchStore::WriteNewest(const std::string& id) {
  std::lock_guard writing(writing_);
  Kept newest;
  {
    std::lock_guard lock(mutex_);
    const auto found = batches_.find(id);
    if (found == batches_.end()) return absl::OkStatus();
    newest = found->second;
  }
  return WriteWhole(PathOf(id), DiskJson(*newest));
}

absl::Status BatchStore::Add(const BatchRecord& batch) {
  const uint64_t owner = batch.owner;
  const size_t num_open = Select([owner](const BatchRecord& other) {
                            return other.owner == owner && !HasEnded(other.status);
                          }).size();
  if (num_open >= kMaxOpen) {
    return absl::ResourceExhaustedError(
        base::StrCat("there are ", kMaxOpen, " batches that have not ended: wait for one"));
  }
  {
    std::lock_guard writing(writing_);
    HEDDLE_RETURN_IF_ERROR(WriteWhole(PathOf(batch.id), DiskJson(batch)));
  }
  Show(batch);
  ForgetOldest(owner);
  return absl::OkStatus();
}

absl::Status BatchStore::Save(const BatchRecord& batch) {
  Show(batch);
  return WriteNewest(batch.id);
}

void BatchStore::Show(BatchRecord batch) {
  std::lock_guard lock(mutex_);
  Kept& kept = batches_[batch.id];
  if (kept != nullptr && kept->status == BatchStatus::kCancelling && !HasEnded(batch.status)) {
    batch.Become(BatchStatus::kCancelling,
                 kept->since[static_cast<size_t>(BatchStatus::kCancelling)]);
  }
  kept = std::make_shared<const BatchRecord>(std::move(batch));
}

absl::StatusOr<BatchRecord> BatchStore::Cancel(std::string_view id, uint64_t owner, int64_t now) {
  BatchRecord batch;
  {
    std::lock_guard lock(mutex_);
    const auto found = batches_.find(id);
    if (found == batches_.end() || found->second->owner != owner) {
      return WithCode(absl::NotFoundError(base::StrCat("there is no batch ", base::Quote(id))),
                      "batch_not_found");
    }
    batch = *found->second;
    if (HasEnded(batch.status)) {
      return WithCode(
          absl::InvalidArgumentError(base::StrCat(
              "the batch ", base::Quote(id), " has ended: it is ", BatchStatusName(batch.status))),
          "batch_ended");
    }
    if (batch.status == BatchStatus::kCancelling || batch.status == BatchStatus::kFinalizing) {
      return batch;
    }
    batch.Become(BatchStatus::kCancelling, now);
    found->second = std::make_shared<const BatchRecord>(batch);
  }
  HEDDLE_RETURN_IF_ERROR(WriteNewest(batch.id));
  return batch;
}

std::shared_ptr<const BatchRecord> BatchStore::Find(std::string_view id, uint64_t owner) const {
  std::lock_guard lock(mutex_);
  const auto found = batches_.find(id);
  return found == batches_.end() || found->second->owner != owner ? nullptr : found->second;
}

template <typename Wanted>
std::vector<BatchStore::Kept> BatchStore::Select(const Wanted& wanted) const {
  std::vector<Kept> list;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, batch] : batches_) {
      if (wanted(*batch)) list.push_back(batch);
    }
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Kept& a, const Kept& b) { return a->created() < b->created(); });
  return list;
}

std::vector<std::shared_ptr<const BatchRecord>> BatchStore::List(uint64_t owner) const {
  return Select([owner](const BatchRecord& batch) { return batch.owner == owner; });
}

std::vector<std::shared_ptr<const BatchRecord>> BatchStore::Unfinished() const {
  return Select([](const BatchRecord& batch) { return !HasEnded(batch.status); });
}

void BatchStore::Count(BatchFigures* figures) const {
  figures->batches = {};
  figures->lines_left = 0;
  std::lock_guard lock(mutex_);
  for (const auto& [id, batch] : batches_) {
    ++figures->batches[static_cast<size_t>(batch->status)];
    if (HasEnded(batch->status)) continue;
    figures->lines_left += batch->total - batch->succeeded - batch->failed;
  }
}

void BatchStore::ForgetOldest(uint64_t owner) {
  const std::vector<Kept> all = List(owner);
  size_t too_many = all.size() > kMaxKept ? all.size() - kMaxKept : 0;
  for (const Kept& batch : all) {
    if (too_many == 0) return;
    if (!HasEnded(batch->status)) continue;
    --too_many;
    std::lock_guard writing(writing_);
    unlink(PathOf(batch->id).c_str());
    std::lock_guard lock(mutex_);
    batches_.erase(batch->id);
  }
}

}  // namespace heddle::server
