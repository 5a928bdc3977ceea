// Remembers what happened to each request, step by step: when it was queued and admitted, its
// chunks, decodes and preemptions. It keeps the last kMaxRequests requests, and of each the last
// kMaxEntries entries; consecutive steps that are alike share an entry, so a long answer takes one.
//
// Thread-safety: all members may be called from any thread. The loop's thread writes, once per step
// for all sequences of it.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/scheduler.h"
#include "server/generation.h"

namespace heddle::server {

class RequestHistories {
 public:
  // About 4 KiB of entries each, 4 MiB in all.
  static constexpr size_t kMaxRequests = 1024;
  static constexpr size_t kMaxEntries = 64;

  void Queued(const GenerationRequest& request, int64_t arrival_us);
  // Records a step that was planned at begin_us and done at end_us. A step without notes is
  // ignored.
  void Step(std::span<const scheduler::StepNote> notes, int64_t begin_us, int64_t end_us);
  void Finished(RequestId id, int32_t branch, FinishReason reason, bool is_last, int64_t now_us);
  void Token(RequestId id, int64_t count);

  std::vector<RequestHistory> Histories(int64_t now_us) const;
  // `name`: a label, the name of a tree, or a number; the newest request that has it.
  std::optional<RequestHistory> History(std::string_view name, int64_t now_us) const;

 private:
  struct Entry {
    HistoryEntry::Kind kind;
    int32_t branch;
    int32_t steps;
    int64_t tokens;
    int64_t begin_us, end_us;
  };
  struct Record {
    RequestId id{};
    std::string label, tree, branch;
    int64_t arrival_us = 0;
    int64_t ended_us = -1;
    FinishReason reason = FinishReason::kStop;
    int32_t prompt_tokens = 0;
    int32_t cached_tokens = -1;  // -1: not admitted yet
    int64_t generated_tokens = 0;
    int32_t preemptions = 0;
    int64_t queued_us = -1;
    int64_t forgotten_entries = 0;
    std::vector<Entry> entries;
  };

  Record* Find(RequestId id);
  static void Add(Record* record, const Entry& entry);
  static void AddNote(Record* record, const scheduler::StepNote& note, int64_t begin_us,
                      int64_t end_us);
  static RequestHistory Describe(const Record& record, int64_t now_us);
  std::vector<BranchRun> RunsOf(std::string_view tree, int64_t now_us) const;

  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  absl::flat_hash_map<RequestId, Record> records_;
  std::deque<RequestId> order_;  // the oldest first
};

}  // namespace heddle::server
