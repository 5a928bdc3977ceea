// Times as answers show them.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::server {

// RFC 3339 in UTC: "2026-11-24T13:17:02Z", with nanoseconds where there is a fraction. `created`:
// seconds since 1970, from the year 1 to 9999.
std::string Rfc3339(int64_t created, double seconds_later = 0);

}  // namespace heddle::server
