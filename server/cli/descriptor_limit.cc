#include "server/cli/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace heddle::server {

void AllowDescriptors(int64_t connections, const Logger& log) {
  constexpr int64_t kOwn = 256;  // the model's files, listeners, timers, files that a scrape opens
  const auto wanted = static_cast<rlim_t>(connections + kOwn);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return;
  log.Warning(
      "fewer descriptors may be open than --max-connections needs: raise `ulimit -n` "
      "(LimitNOFILE=), or lower --max-connections",
      {{"descriptors", static_cast<int64_t>(limit.rlim_cur)},
       {"wanted", static_cast<int64_t>(wanted)}});
}

}  // namespace heddle::server
