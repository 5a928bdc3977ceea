// Any text as a key file.
#include <cstdint>
#include <string_view>

#include "server/access/api_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto keys = heddle::server::ParseKeyFile(text, {.concurrency = 2});
  if (!keys.ok()) return 0;
  const heddle::server::KeyRing ring(*std::move(keys));
  return ring.Find(text.substr(0, 16)) >= static_cast<int>(ring.keys().size()) ? -1 : 0;
}
