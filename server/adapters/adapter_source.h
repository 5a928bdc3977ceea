// Where the registry gets adapters from: the disk, or a test's double.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::server {

// Tells two states of an adapter's files apart without reading them.
struct AdapterStamp {
  std::string files;  // sizes, times and inodes
  int64_t bytes = 0;  // of all files

  bool operator==(const AdapterStamp&) const = default;
};

// Thread-safety: all members may be called from any thread; they block on the disk.
class AdapterSource {
 public:
  virtual ~AdapterSource() = default;

  // NOT_FOUND: there is no adapter at `path`. With a `root`, PERMISSION_DENIED if the adapter or a
  // file of it leads out of that folder.
  virtual absl::StatusOr<AdapterStamp> Stat(const std::filesystem::path& path,
                                            const std::filesystem::path& root) = 0;

  // As engine::LoadAdapter.
  virtual absl::StatusOr<engine::LoadedAdapter> Load(const std::filesystem::path& path) = 0;
};

}  // namespace heddle::server
