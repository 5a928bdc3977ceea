// The file of --api-key-file: read at start, and again when it has changed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "server/access/api_keys.h"
#include "server/log.h"

namespace heddle::server {

// The limits of keys that have none of their own.
KeyLimits DefaultKeyLimits(const config::ServerConfig& config);

// Warns if other users may read `path`, which is the value of `option`.
void WarnIfReadableByOthers(const char* option, const std::string& path, const Logger& log);

class KeyFile {
 public:
  // `config` must outlive it.
  explicit KeyFile(const config::ServerConfig& config) : config_(config) {}

  bool is_used() const { return !config_.api_key_file.empty(); }

  // The keys; none without a file. The error names the file and the line; a file without keys is an
  // error, because it would protect nothing. Pipes, such as a shell's <(...), can be read once.
  absl::StatusOr<std::vector<ApiKey>> Read();

  // Whether the file has changed since it was read last, as far as the file system tells. It makes
  // one system call.
  bool HasChanged() const;

 private:
  // Distinguishes states of a file; empty if it cannot be determined, or is not a regular file.
  std::string State() const;

  const config::ServerConfig& config_;
  bool was_read_ = false;
  std::string read_state_;
};

}  // namespace heddle::server
