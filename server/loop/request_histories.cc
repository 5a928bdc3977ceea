#include "server/loop/request_histories.h"

#include <algorithm>
#include <charconv>

namespace heddle::server {

using scheduler::StepNote;
using Kind = HistoryEntry::Kind;

namespace {

double InSeconds(int64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

Kind KindOf(StepNote::Kind kind) {
  switch (kind) {
    case StepNote::Kind::kAdmitted:
      return Kind::kAdmitted;
    case StepNote::Kind::kPreempted:
      return Kind::kPreempted;
    case StepNote::Kind::kPrompt:
      return Kind::kPrompt;
    case StepNote::Kind::kDecode:
    case StepNote::Kind::kDraft:
      break;
  }
  return Kind::kDecode;
}

}  // namespace

RequestHistories::Record* RequestHistories::Find(RequestId id) {
  auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

void RequestHistories::Queued(const GenerationRequest& request, int64_t arrival_us) {
  std::lock_guard lock(mutex_);
  if (order_.size() == kMaxRequests) {
    records_.erase(order_.front());
    order_.pop_front();
  }
  order_.push_back(request.id);
  Record& record = records_[request.id];
  record.id = request.id;
  record.label = request.label;
  record.tree = request.tree;
  record.branch = request.branch;
  record.arrival_us = arrival_us;
  record.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  Add(&record, {Kind::kQueued, 0, 0, record.prompt_tokens, arrival_us, arrival_us});
}

void RequestHistories::Step(std::span<const StepNote> notes, int64_t begin_us, int64_t end_us) {
  std::lock_guard lock(mutex_);
  for (const StepNote& note : notes) {
    if (Record* record = Find(note.request)) AddNote(record, note, begin_us, end_us);
  }
}

void RequestHistories::AddNote(Record* record, const StepNote& note, int64_t begin_us,
                               int64_t end_us) {
  const Kind kind = KindOf(note.kind);
  const bool runs = kind == Kind::kPrompt || kind == Kind::kDecode;
  if (kind == Kind::kPreempted) ++record->preemptions;
  if (kind == Kind::kAdmitted && record->cached_tokens < 0) record->cached_tokens = note.tokens;
  if (runs && record->queued_us < 0) record->queued_us = begin_us - record->arrival_us;
  // Branches take turns within a step: the last entry of this branch is among the last few.
  constexpr ptrdiff_t kLookedAt = 8;
  auto end = record->entries.rbegin() +
             std::min<ptrdiff_t>(kLookedAt, static_cast<ptrdiff_t>(record->entries.size()));
  auto last = std::find_if(record->entries.rbegin(), end,
                           [&note](const Entry& entry) { return entry.branch == note.branch; });
  if (runs && last != end && last->kind == kind) {
    ++last->steps;
    last->tokens += note.tokens;
    last->end_us = end_us;
    return;
  }
  Add(record, {kind, note.branch, runs ? 1 : 0, note.tokens, begin_us, runs ? end_us : begin_us});
}

void RequestHistories::Add(Record* record, const Entry& entry) {
  if (record->entries.size() == kMaxEntries) {
    record->entries.erase(record->entries.begin() + 1);  // keep the entry of its arrival
    ++record->forgotten_entries;
  }
  record->entries.push_back(entry);
}

void RequestHistories::Token(RequestId id, int64_t count) {
  std::lock_guard lock(mutex_);
  if (Record* record = Find(id)) record->generated_tokens += count;
}

void RequestHistories::Finished(RequestId id, int32_t branch, FinishReason reason, bool is_last,
                                int64_t now_us) {
  std::lock_guard lock(mutex_);
  Record* record = Find(id);
  if (record == nullptr) return;
  Add(record, {Kind::kFinished, branch, 0, record->generated_tokens, now_us, now_us});
  record->reason = reason;
  if (is_last) record->ended_us = now_us;
}

RequestHistory RequestHistories::Describe(const Record& record, int64_t now_us) {
  RequestHistory history;
  history.id = record.id;
  history.label = record.label;
  history.tree = record.tree;
  history.branch = record.branch;
  history.finished = record.ended_us >= 0;
  history.age_seconds =
      InSeconds((history.finished ? record.ended_us : now_us) - record.arrival_us);
  history.reason = record.reason;
  history.prompt_tokens = record.prompt_tokens;
  history.cached_tokens = std::max(0, record.cached_tokens);
  history.generated_tokens = record.generated_tokens;
  history.preemptions = record.preemptions;
  history.queued_seconds = record.queued_us < 0 ? -1 : InSeconds(record.queued_us);
  history.forgotten_entries = record.forgotten_entries;
  return history;
}

std::vector<BranchRun> RequestHistories::RunsOf(std::string_view tree, int64_t now_us) const {
  std::vector<BranchRun> runs;
  int64_t first_us = 0;
  for (const RequestId id : order_) {
    const Record& record = records_.at(id);
    if (record.tree != tree) continue;
    if (runs.empty()) first_us = record.arrival_us;
    BranchRun& run = runs.emplace_back();
    run.id = id;
    run.branch = record.branch;
    run.finished = record.ended_us >= 0;
    run.reason = record.reason;
    run.cached_tokens = std::max(0, record.cached_tokens);
    run.generated_tokens = record.generated_tokens;
    run.preemptions = record.preemptions;
    run.begin_seconds = InSeconds(record.arrival_us - first_us);
    run.end_seconds = InSeconds((run.finished ? record.ended_us : now_us) - first_us);
  }
  return runs;
}

std::vector<RequestHistory> RequestHistories::Histories(int64_t now_us) const {
  std::lock_guard lock(mutex_);
  std::vector<RequestHistory> histories;
  histories.reserve(order_.size());
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    histories.push_back(Describe(records_.at(*id), now_us));
  }
  return histories;
}

std::optional<RequestHistory> RequestHistories::History(std::string_view name,
                                                        int64_t now_us) const {
  uint64_t number = 0;
  const char* const end = name.data() + name.size();
  auto [parsed, error] = std::from_chars(name.data(), end, number);
  const bool is_number = error == std::errc() && parsed == end;
  std::lock_guard lock(mutex_);
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const Record& record = records_.at(*id);
    const bool is_named = record.label == name || (!name.empty() && record.tree == name);
    if (!is_named && !(is_number && record.id == RequestId{number})) continue;
    RequestHistory history = Describe(record, now_us);
    for (const Entry& entry : record.entries) {
      history.steps.push_back({entry.kind, entry.branch, entry.steps, entry.tokens,
                               InSeconds(entry.begin_us - record.arrival_us),
                               InSeconds(entry.end_us - record.arrival_us)});
    }
    if (!record.tree.empty()) history.runs = RunsOf(record.tree, now_us);
    return history;
  }
  return std::nullopt;
}

}  // namespace heddle::server
