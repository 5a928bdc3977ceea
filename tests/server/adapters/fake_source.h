// Adapters that a test makes up: what lies where, what loading it says, and a clock.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/adapters/adapter_source.h"

namespace heddle::server::test {

// Files by path; a file's content decides its digest. Written by one thread while no other reads.
struct FakeFiles {
  struct File {
    std::string content;
    int64_t time = 0;
    std::string broken;  // why it cannot be loaded; empty: it can
  };
  std::map<std::string, File> files;
  std::atomic<int> num_stats = 0;
  std::atomic<int> num_loads = 0;
  // Called within each load.
  std::function<void()> on_load;
};

inline std::shared_ptr<engine::AdapterImage> ImageOf(const std::string& content) {
  auto image = std::make_shared<engine::AdapterImage>();
  image->page_bytes = static_cast<int64_t>(content.size());
  image->num_pages = 1;
  image->max_rank = 8;
  image->content = std::make_unique<std::byte[]>(content.size());
  for (size_t i = 0; i < content.size(); ++i) image->content[i] = std::byte(content[i]);
  return image;
}

class FakeSource final : public AdapterSource {
 public:
  explicit FakeSource(FakeFiles* files) : files_(files) {}

  absl::StatusOr<AdapterStamp> Stat(const std::filesystem::path& path,
                                    const std::filesystem::path&) override {
    ++files_->num_stats;
    const auto found = files_->files.find(path.string());
    if (found == files_->files.end()) return absl::NotFoundError("no file");
    return AdapterStamp{std::to_string(found->second.time),
                        static_cast<int64_t>(found->second.content.size())};
  }

  absl::StatusOr<engine::LoadedAdapter> Load(const std::filesystem::path& path) override {
    ++files_->num_loads;
    if (files_->on_load) files_->on_load();
    const auto found = files_->files.find(path.string());
    if (found == files_->files.end()) return absl::NotFoundError("it is gone");
    if (!found->second.broken.empty()) {
      return absl::InvalidArgumentError(found->second.broken);
    }
    engine::LoadedAdapter loaded;
    loaded.image = ImageOf(found->second.content);
    loaded.summary.max_rank = 8;
    return loaded;
  }

 private:
  FakeFiles* files_;
};

}  // namespace heddle::server::test
