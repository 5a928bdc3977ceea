// Answers of the registry of adapters. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ids.h"
#include "server/adapters/image_digest.h"
#include "server/adapters/image_store.h"

namespace heddle::server {

enum class AdapterState : uint8_t {
  kKnown,  // on the disk; loaded when somebody asks for it
  kLoading,
  kReady,
  kFailed,  // as it is on the disk now
};

std::string_view AdapterStateName(AdapterState state);  // "known", "loading"...

// The adapter of a request: one, or several as one (adapter_sets.h).
struct AdapterLease {
  std::string name;  // empty: of several
  engine::AdapterId id{};
  float scale = 1.0f;  // beside the image's own
  AdapterDigest digest{};
  SharedImage image;
};

struct AdapterInfo {
  std::string name;
  std::string path;
  int32_t index = 0;  // stays the same while the name is known
  AdapterState state = AdapterState::kKnown;
  engine::AdapterId id{};  // 0: it was never loaded
  std::string digest;      // SHA-256 in hexadecimal; empty: it was never loaded
  int32_t rank = 0;
  int64_t bytes = 0;  // of the image
  bool pinned = false;
  bool fixed = false;   // of the command line
  bool added = false;   // by an operator
  std::string failure;  // of kFailed
};

struct AdapterFigures {
  int64_t known = 0;  // names, of which...
  int64_t loading = 0;
  int64_t failed = 0;
  int64_t in_memory = 0;  // images
  int64_t host_bytes = 0;
  int64_t host_bytes_limit = 0;
  int64_t evictions = 0;
  int64_t loads = 0;  // that succeeded
  int64_t failed_loads = 0;
  int64_t waiting = 0;  // requests, and operators' loads
  // Some that requests wait for, by name (kMaxNamed at most).
  std::vector<std::string> wanted;
  double wanted_changed_at = 0;  // Unix time, seconds, of the last change of `wanted`

  static constexpr size_t kMaxNamed = 100;
};

}  // namespace heddle::server
