// Any text as a tune profile. One that is accepted can be written and read again.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/cli/tune_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = heddle::server::ReadTuneProfile(text, "p");
  if (!profile.ok()) return 0;
  const std::vector<double> speedups(profile->steps.rules.size(), 1.0);
  const auto again =
      heddle::server::ReadTuneProfile(heddle::server::WriteTuneProfile(*profile, speedups), "p");
  HEDDLE_CHECK(again.ok() && again->steps.rules == profile->steps.rules,
               "a profile is read as it was written");
  HEDDLE_CHECK(again->model == profile->model, "a model is read as it was written");
  return 0;
}
