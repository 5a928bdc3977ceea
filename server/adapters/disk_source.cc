#include "server/adapters/disk_source.h"

#include <sys/stat.h>

#include <system_error>
#include <utility>

#include "base/message.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kPeftFiles[] = {kConfigFile, "adapter_model.safetensors"};

// Follows links. False: it is not there, or cannot be read.
bool StatFile(const fs::path& path, struct stat* out) { return ::stat(path.c_str(), out) == 0; }

void AddFile(const struct stat& file, AdapterStamp* stamp) {
  stamp->files += base::StrCat(
      static_cast<int64_t>(file.st_dev), ":", static_cast<int64_t>(file.st_ino), ":",
      static_cast<int64_t>(file.st_size), ":", static_cast<int64_t>(file.st_mtim.tv_sec), ".",
      static_cast<int64_t>(file.st_mtim.tv_nsec), ";");
  stamp->bytes += static_cast<int64_t>(file.st_size);
}

// Links are followed: what counts is where the bytes lie.
bool LiesWithin(const fs::path& path, const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return false;
  const fs::path real_root = fs::canonical(root, error);
  if (error) return false;
  const fs::path relative = real.lexically_relative(real_root);
  return !relative.empty() && *relative.begin() != ".." && *relative.begin() != ".";
}

absl::Status NoAdapter(const fs::path& path) {
  return absl::NotFoundError(base::StrCat("there is no adapter at ", base::Quote(path.string()),
                                          ": neither a folder with ", kConfigFile,
                                          " nor a GGUF file"));
}

absl::Status LeadsOut(const fs::path& path) {
  return absl::PermissionDeniedError(
      base::StrCat(base::Quote(path.string()), " leads out of the folder of adapters"));
}

}  // namespace

absl::StatusOr<AdapterStamp> DiskAdapterSource::Stat(const fs::path& path, const fs::path& root) {
  AdapterStamp stamp;
  struct stat found = {};
  if (!StatFile(path, &found)) return NoAdapter(path);
  if (!root.empty() && !LiesWithin(path, root)) return LeadsOut(path);
  if (S_ISREG(found.st_mode)) {
    if (path.extension() != ".gguf") return NoAdapter(path);
    AddFile(found, &stamp);
    return stamp;
  }
  if (!S_ISDIR(found.st_mode)) return NoAdapter(path);
  for (const char* name : kPeftFiles) {
    const fs::path file = path / name;
    if (!StatFile(file, &found)) {
      if (name == kConfigFile) return NoAdapter(path);
      continue;  // loading says what is missing
    }
    if (!S_ISREG(found.st_mode)) return NoAdapter(path);
    if (!root.empty() && !LiesWithin(file, root)) return LeadsOut(file);
    AddFile(found, &stamp);
  }
  return stamp;
}

}  // namespace heddle::server
