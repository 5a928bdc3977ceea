// The settings that joining ranks take over from the head.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/parallel/shard.h"
#include "kernels/dtype.h"

namespace heddle::server {

struct RankSettings {
  engine::Layout layout;
  std::string weights;
  std::string kv_type;
  int32_t page_tokens = 0;
  int32_t max_batch_tokens = 0;
  int32_t max_batch_seqs = 0;
  int32_t max_context = 0;                     // 0: the model's
  int32_t adapter_max_rank = 0;                // 0: no adapters run
  kernels::DType wire = kernels::DType::kF32;  // SendingCommunicator::wire_type
  std::chrono::milliseconds timeout{0};
  // How long a lost rank may take to join again, and a rank tries to; 0: a loss ends the group.
  std::chrono::milliseconds rejoin{0};
  uint64_t session = 0;    // of the head's process: a rank that has lost it finds out if it is new
  int32_t head_ranks = 1;  // that the head's process has
  // The family of those; it is told nobody, so that whoever knows it is a thread of that process.
  uint64_t head_family = 0;
};

}  // namespace heddle::server
