// Record of a batch: its life as the API shows it, and as it is on the disk.
// Source: OpenAI's API reference, "Batch".
// Plain data. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

enum class BatchStatus : uint8_t {
  kValidating,
  kInProgress,
  kFinalizing,
  kCancelling,
  kCompleted,  // from here on it has ended
  kFailed,
  kExpired,
  kCancelled,
};
inline constexpr size_t kNumBatchStatuses = 8;

std::string_view BatchStatusName(BatchStatus status);  // "validating"...
inline bool HasEnded(BatchStatus status) { return status >= BatchStatus::kCompleted; }

// Why a batch could not be run.
struct BatchFault {
  std::string code;
  std::string message;
  std::string param;  // field of the line; empty: none
  int64_t line = 0;   // of the input file, from 1 on; 0: none
};

struct BatchRecord {
  std::string id;
  uint64_t owner = 0;
  std::string endpoint;
  std::string input_file;
  std::string window;             // as it was asked for: "24h"
  std::string metadata = "null";  // JSON
  BatchStatus status = BatchStatus::kValidating;
  // When it came to be what it is, by status; seconds since 1970. 0: it was not.
  std::array<int64_t, kNumBatchStatuses> since{};
  int64_t expires = 0;
  // Ids of files, which are there once they have lines and the batch has ended.
  std::string output_file;
  std::string error_file;
  bool has_output = false;
  bool has_errors = false;
  int64_t output_lifetime = 0;  // seconds; 0: its files stay
  // Lines of the input, and how many of them succeeded and failed.
  int64_t total = 0;
  int64_t succeeded = 0;
  int64_t failed = 0;
  std::vector<BatchFault> faults;

  int64_t created() const { return since[0]; }
  void Become(BatchStatus next, int64_t now) {
    status = next;
    since[static_cast<size_t>(next)] = now;
  }
};

std::string BatchJson(const BatchRecord& batch);

// The same and what only the server knows, and back.
std::string DiskJson(const BatchRecord& batch);
absl::StatusOr<BatchRecord> ReadDiskJson(std::string_view text);

}  // namespace heddle::server
