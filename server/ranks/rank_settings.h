// The settings that joining ranks take over from the head.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/parallel/shard.h"

namespace heddle::server {

struct RankSettings {
  engine::Layout layout;
  std::string weights;
  std::string kv_type;
  int32_t page_tokens = 0;
  int32_t max_batch_tokens = 0;
  int32_t max_batch_seqs = 0;
  int32_t max_context = 0;  // 0: the model's
  std::chrono::milliseconds timeout{0};
};

}  // namespace heddle::server
