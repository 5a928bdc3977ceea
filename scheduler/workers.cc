#include "scheduler/workers.h"

#include <algorithm>

namespace heddle::scheduler {

namespace {

// Rows of a worker's block, with those that are planned.
int32_t NumRows(const Sequence& worker) {
  return worker.num_computed() - worker.request->num_prompt();
}

// Rows of `other` that the last row of `worker` sees.
int32_t NumSeen(const Sequence& worker, const Sequence& other) {
  if (&worker == &other) return NumRows(worker);
  return std::min(NumRows(other), NumRows(worker) - 1);
}

// Adds the pages of places [begin, end) of a table. REQUIRES: `begin` is the first of a page.
void AddPages(const PageTable& table, int32_t begin, int32_t end, int32_t page_tokens,
              std::vector<engine::KvSpan>* spans) {
  for (int32_t at = begin; at < end; at += page_tokens) {
    const auto index = static_cast<size_t>((at - table.num_dropped()) / page_tokens);
    spans->push_back({table.spans()[index].page, std::min(page_tokens, end - at)});
  }
}

// Calls visit(other) for the other workers in their order, and last for the worker itself.
template <typename Visit>
void ForEachBlock(const Sequence& worker, Visit&& visit) {
  for (const Sequence& other : worker.request->branches) {
    if (&other != &worker) visit(other);
  }
  visit(worker);
}

}  // namespace

void BeginWorkers(RequestState* request) {
  const auto prompt = static_cast<int32_t>(request->request.prompt.size());
  request->request.parts = PartsApart({}, prompt);
  for (Sequence& worker : request->branches) {
    worker.block = request->request.workers[static_cast<size_t>(worker.branch)];
    worker.num_given = static_cast<int32_t>(worker.block.size());
  }
}

bool IsReady(const Sequence& worker) {
  const std::vector<Sequence>& all = worker.request->branches;
  return std::all_of(all.begin(), all.end(), [&](const Sequence& other) {
    const bool goes_on = other.is_over || other.num_remaining() > 0 || other.ends();
    int32_t seen = NumRows(worker);
    if (other.is_over) seen = std::min(seen, static_cast<int32_t>(other.generated.size()));
    return goes_on && NumRows(other) >= seen;
  });
}

int32_t NumKept(const Sequence& worker, FinishReason reason) {
  const RequestState& request = *worker.request;
  const auto size = static_cast<int32_t>((request.forked ? worker.generated : worker.block).size());
  if (reason == FinishReason::kError) return size;  // nothing was drawn behind the last one
  if (reason != FinishReason::kCancelled || !request.forked) return size - 1;
  int32_t most = 0;  // rows of others
  for (const Sequence& other : request.branches) {
    if (&other != &worker) most = std::max(most, NumRows(other));
  }
  return std::clamp(most - 1, size - 1, size);
}

engine::GroupSpans::Range WriteWorkerSpans(const Sequence& worker, int32_t group,
                                           int32_t page_tokens,
                                           std::vector<engine::KvSpan>* spans) {
  const RequestState& request = *worker.request;
  const PageTable& table = worker.tables[group];
  const auto first = static_cast<int32_t>(spans->size());
  const int32_t prompt = request.layout.first_end();
  int32_t context_tokens = prompt - table.num_dropped();
  AddPages(table, table.num_dropped(), prompt, page_tokens, spans);
  ForEachBlock(worker, [&](const Sequence& other) {
    const int32_t seen = NumSeen(worker, other);
    const int32_t begin = request.num_prompt();
    AddPages(other.tables[group], begin, begin + seen, page_tokens, spans);
    context_tokens += seen;
  });
  return {first, static_cast<int32_t>(spans->size()) - first, context_tokens, 0};
}

void WriteWorkerPieces(const Sequence& worker, std::vector<engine::ContextPiece>* pieces) {
  const int32_t prompt = worker.request->layout.first_end();
  int32_t turn = 0;  // positions of the other blocks
  ForEachBlock(worker, [&](const Sequence& other) {
    if (&other != &worker) turn += NumSeen(worker, other);
  });
  if (turn == 0) return;
  pieces->push_back({.num_tokens = prompt, .position = 0, .turn = turn});
  ForEachBlock(worker, [&](const Sequence& other) {
    const int32_t seen = NumSeen(worker, other);
    if (seen > 0) pieces->push_back({.num_tokens = seen, .position = prompt, .turn = turn});
    turn -= seen;
  });
}

}  // namespace heddle::scheduler
