#include "server/batch/file_store.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

constexpr std::string_view kDescription = ".json";
constexpr size_t kMaxDescriptionBytes = size_t{64} << 10;

int64_t IntegerIn(const Json& object, std::string_view name) {
  const Json* value = Find(object, name);
  return value == nullptr ? 0 : IntegerOf(*value).value_or(0);
}

}  // namespace

std::string RandomId(std::string_view prefix) {
  std::array<uint64_t, 2> random{};
  HEDDLE_CHECK(getrandom(random.data(), sizeof(random), 0) == sizeof(random),
               "the system has no random bytes");
  return base::StrCat(prefix, absl::StrFormat("%016x%016x", random[0], random[1]));
}

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FileJson(const StoredFile& file) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", file.id).Member("object", "file");
  json.Member("bytes", file.bytes).Member("created_at", file.created).Key("expires_at");
  file.expires == 0 ? json.Null() : json.Int(file.expires);
  json.Member("filename", file.name).Member("purpose", file.purpose);
  json.Member("status", "processed").NullMember("status_details").EndObject();
  return out;
}

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(std::string folder,
                                                           const Limits& limits) {
  auto store = std::unique_ptr<FileStore>(new FileStore(std::move(folder), limits));
  HEDDLE_RETURN_IF_ERROR(store->Load());
  return store;
}

// A description that cannot be read is left out, with its content: another program wrote it.
absl::Status FileStore::Load() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(kDescription)) continue;
    absl::StatusOr<std::string> text = ReadWhole(path, kMaxDescriptionBytes);
    if (!text.ok()) continue;
    const absl::StatusOr<Json> read = ParseJsonObject(*text);
    if (!read.ok()) continue;
    auto file = std::make_shared<StoredFile>();
    file->id = entry.path().stem().string();
    absl::StatusOr<Descriptor> content = OpenFile(PathOf(file->id));
    if (!content.ok()) continue;
    file->bytes = SizeOf(*content);
    file->owner = std::strtoull(TextOr(*read, "owner", "").c_str(), nullptr, 16);
    file->created = IntegerIn(*read, "created");
    file->expires = IntegerIn(*read, "expires");
    file->name = TextOr(*read, "name", "");
    file->purpose = TextOr(*read, "purpose", "");
    bytes_ += file->bytes;
    files_[file->id] = std::move(file);
  }
  if (error) {
    return absl::InternalError(
        base::StrCat("cannot read the folder ", folder_, ": ", error.message()));
  }
  return absl::OkStatus();
}

std::string FileStore::NewId() const { return RandomId("file-"); }

absl::StatusOr<StoredFile> FileStore::Add(StoredFile file, std::string_view content) {
  {
    std::lock_guard lock(mutex_);
    if (CountLocked(file.owner) >= limits_.max_files) {
      return WithCode(absl::ResourceExhaustedError(base::StrCat("there are ", limits_.max_files,
                                                                " files already: delete some")),
                      "insufficient_quota");
    }
  }
  file.id = NewId();
  file.bytes = static_cast<int64_t>(content.size());
  HEDDLE_RETURN_IF_ERROR(Grow(file.bytes));
  absl::Status status = WriteWhole(PathOf(file.id), content);
  if (status.ok()) status = Publish(file);
  if (status.ok()) return file;
  unlink(PathOf(file.id).c_str());
  std::lock_guard lock(mutex_);
  bytes_ -= file.bytes;
  return status;
}

absl::Status FileStore::Grow(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes_ + bytes > limits_.max_bytes) {
    return WithCode(absl::ResourceExhaustedError(
                        base::StrCat("the files of all clients together would have more than ",
                                     limits_.max_bytes, " bytes (--batch-storage): delete some")),
                    "insufficient_quota");
  }
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status FileStore::Publish(StoredFile file) {
  HEDDLE_RETURN_IF_ERROR(Describe(file));
  std::lock_guard lock(mutex_);
  const std::string id = file.id;
  files_[id] = std::make_shared<const StoredFile>(std::move(file));
  return absl::OkStatus();
}

absl::Status FileStore::Describe(const StoredFile& file) const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("owner", absl::StrFormat("%016x", file.owner));
  json.Member("created", file.created).Member("expires", file.expires);
  json.Member("name", file.name).Member("purpose", file.purpose).EndObject();
  return WriteWhole(base::StrCat(PathOf(file.id), kDescription), out);
}

size_t FileStore::CountLocked(uint64_t owner) const {
  return static_cast<size_t>(
      std::count_if(files_.begin(), files_.end(),
                    [owner](const auto& entry) { return entry.second->owner == owner; }));
}

std::shared_ptr<const StoredFile> FileStore::Find(std::string_view id, uint64_t owner) const {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  return found == files_.end() || found->second->owner != owner ? nullptr : found->second;
}

std::vector<std::shared_ptr<const StoredFile>> FileStore::List(uint64_t owner) const {
  std::vector<std::shared_ptr<const StoredFile>> list;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_) {
      if (file->owner == owner) list.push_back(file);
    }
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a->created < b->created; });
  return list;
}

absl::StatusOr<Descriptor> FileStore::OpenContent(const StoredFile& file) const {
  return OpenFile(PathOf(file.id));
}

// The description goes first: without it the rest is an orphan.
bool FileStore::Delete(std::string_view id, uint64_t owner) {
  std::shared_ptr<const StoredFile> file;
  {
    std::lock_guard lock(mutex_);
    const auto found = files_.find(id);
    if (found == files_.end() || found->second->owner != owner) return false;
    file = std::move(found->second);
    files_.erase(found);
    bytes_ -= file->bytes;
  }
  unlink(base::StrCat(PathOf(file->id), kDescription).c_str());
  unlink(PathOf(file->id).c_str());
  return true;
}

void FileStore::DeleteExpired(int64_t now) {
  std::vector<std::shared_ptr<const StoredFile>> expired;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_) {
      if (file->expires != 0 && file->expires <= now) expired.push_back(file);
    }
  }
  for (const auto& file : expired) Delete(file->id, file->owner);
}

void FileStore::DeleteOrphans(const std::vector<std::string>& growing) {
  std::lock_guard lock(mutex_);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const std::string id = name.substr(0, name.find('.'));
    const bool is_ours = id.starts_with("file-");
    if (!is_ours || files_.contains(id)) continue;
    if (std::find(growing.begin(), growing.end(), id) != growing.end()) continue;
    unlink(entry.path().c_str());
  }
}

int64_t FileStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace heddle::server
