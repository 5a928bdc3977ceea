// The host's tier of the KV cache: pages that do not fit into the pool, in the host's memory or in
// a file. The scheduler numbers the slots.
//
// A file is mapped: the operating system keeps used parts in memory, and writes the rest to the
// disk when it needs the memory. The file has no name, and ends with the process.
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace heddle::engine {

class HostPages {
 public:
  // RESOURCE_EXHAUSTED if the memory, or the disk that holds `directory`, lacks the room;
  // FAILED_PRECONDITION if no file can be made there. An empty `directory` means memory. Pages
  // may be empty: those of a rank without heads.
  static absl::StatusOr<std::unique_ptr<HostPages>> Create(int32_t num_slots, int64_t page_bytes,
                                                           const std::string& directory);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  // The bytes [page_bytes] of `slot` in [0, num_slots).
  std::byte* Slot(int32_t slot) const { return base_ + slot * page_bytes_; }

 private:
  HostPages(std::byte* base, int64_t bytes, int64_t page_bytes)
      : base_(base), bytes_(bytes), page_bytes_(page_bytes) {}

  std::byte* const base_;
  const int64_t bytes_;
  const int64_t page_bytes_;
};

}  // namespace heddle::engine
