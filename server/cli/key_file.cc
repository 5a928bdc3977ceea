#include "server/cli/key_file.h"

#include <sys/stat.h>

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/cli/standard_io.h"
#include "server/request/api_error.h"

namespace heddle::server {

KeyLimits DefaultKeyLimits(const config::ServerConfig& config) {
  return {.requests_per_minute = config.key_requests_per_minute,
          .tokens_per_minute = config.key_tokens_per_minute,
          .concurrency = config.key_concurrency};
}

void WarnIfReadableByOthers(const char* option, const std::string& path, const Logger& log) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
  log.Warning("a file of keys can be read by every user of this machine: chmod o-r",
              {{"option", option}, {"file", path}});
}

absl::StatusOr<std::vector<ApiKey>> KeyFile::Read() {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  if (!is_used()) return std::vector<ApiKey>();
  read_state_ = State();  // taken first: changes during the reading are then read again
  if (std::exchange(was_read_, true) &&
      read_state_.empty()) {  // opening a pipe could wait without end
    return absl::NotFoundError(base::StrCat("--api-key-file ", config_.api_key_file,
                                            ": there is no regular file of that name any more"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_.api_key_file, kMaxBytes));
  absl::StatusOr<std::vector<ApiKey>> keys = ParseKeyFile(text, DefaultKeyLimits(config_));
  if (keys.ok() && !keys->empty()) return keys;
  const std::string_view why = keys.ok()
                                   ? "there is no key in it; without the option everyone may ask"
                                   : MessageOf(keys.status());
  return absl::InvalidArgumentError(
      base::StrCat("--api-key-file ", config_.api_key_file, ": ", why));
}

bool KeyFile::HasChanged() const {
  const std::string state = is_used() ? State() : "";
  return !state.empty() && state != read_state_;
}

std::string KeyFile::State() const {
  struct stat info {};
  if (stat(config_.api_key_file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  return base::StrCat(info.st_dev, " ", info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec,
                      " ", info.st_mtim.tv_nsec, " ", info.st_ctim.tv_sec, " ",
                      info.st_ctim.tv_nsec);
}

}  // namespace heddle::server
