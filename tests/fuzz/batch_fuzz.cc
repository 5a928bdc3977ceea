// Any bytes as an upload's form, as a line of a batch, and as a record on the disk.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "nlohmann/json.hpp"
#include "server/batch/batch_input.h"
#include "server/batch/batch_record.h"
#include "server/batch/form.h"

namespace heddle::test {
namespace {

void CheckForm(std::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view type = input.substr(0, end);
  const std::string_view body = input.substr(std::min(input.size(), end + 1));
  const auto form = server::ParseForm(type, body);
  if (!form.ok()) {
    HEDDLE_CHECK(absl::IsInvalidArgument(form.status()), "a form is the client's fault");
    return;
  }
  for (const server::FormPart& part : *form) {
    const bool is_within = part.content.data() >= body.data() &&
                           part.content.data() + part.content.size() <= body.data() + body.size();
    HEDDLE_CHECK(is_within, "a part is a view into the body");
  }
}

void CheckLine(std::string_view input) {
  const auto line = server::ReadBatchLine(input, "/v1/responses");
  if (!line.ok()) {
    HEDDLE_CHECK(absl::IsInvalidArgument(line.status()), "a line is the client's fault");
    return;
  }
  HEDDLE_CHECK(!line->custom_id.empty(), "a line has an id");
  HEDDLE_CHECK(nlohmann::json::accept(line->body), "its body is JSON");
}

void CheckRecord(std::string_view input) {
  const auto batch = server::ReadDiskJson(input);
  if (!batch.ok()) return;
  const std::string shown = server::BatchJson(*batch);
  HEDDLE_CHECK(nlohmann::json::accept(shown), "a record is shown as JSON");
  const auto again = server::ReadDiskJson(server::DiskJson(*batch));
  HEDDLE_CHECK(again.ok() && server::BatchJson(*again) == shown, "a record stays what it is");
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  heddle::test::CheckForm(input);
  heddle::test::CheckLine(input);
  heddle::test::CheckRecord(input);
  return 0;
}
