// Any bytes as the bodies of messages with step plans: two bytes with a length, then so many of a
// body, again and again. Headers and checksums are made right, so that the bodies are read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/parallel/check_plan.h"
#include "engine/parallel/plan_codec.h"

using heddle::engine::ByteWriter;
using heddle::engine::ChainChecksum;
using heddle::engine::ExecutorLimits;
using heddle::engine::PlanDecoder;
using heddle::engine::StepPlan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ExecutorLimits limits;
  limits.num_pages = 100;
  limits.page_tokens = 4;
  limits.max_context = 64;
  limits.max_batch_tokens = 32;
  limits.max_batch_seqs = 8;
  limits.num_host_pages = 4;
  limits.vocab = 1000;
  limits.windows = {0, 16};
  limits.max_ahead_tokens = 4;
  limits.adapter_slots = 4;
  PlanDecoder decoder(limits);
  StepPlan plan;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  uint64_t chain = 0;
  while (rest.size() >= 2) {
    const size_t length = static_cast<uint8_t>(rest[0]) + 256 * static_cast<uint8_t>(rest[1]);
    rest.remove_prefix(2);
    const std::string_view body = rest.substr(0, std::min(length, rest.size()));
    rest.remove_prefix(body.size());
    std::string message = "HPLN\x02";
    message += body;
    chain = ChainChecksum(chain, message);
    ByteWriter(&message).Word(chain);
    if (!decoder.Decode(message, &plan).ok()) break;
    HEDDLE_CHECK(heddle::engine::CheckPlan(plan, limits).ok(), "an unchecked plan");
  }
  return 0;
}
