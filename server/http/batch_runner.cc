#include "server/http/batch_runner.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <charconv>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/http/api_handler.h"
#include "server/http/request_guard.h"
#include "server/http/server_context.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

namespace asio = boost::asio;

// While lines run: how soon live requests have the machine for themselves.
constexpr auto kBatchTick = std::chrono::milliseconds(50);
constexpr auto kIdleBatchTick = std::chrono::seconds(1);
constexpr auto kSweepInterval = std::chrono::seconds(30);
// Batches that run at the same time, each of another owner: three open files each.
constexpr size_t kMaxRuns = 32;
// How often a result without room is tried again.
constexpr auto kFullInterval = std::chrono::seconds(1);
constexpr int64_t kLeastRetrySeconds = 1;
constexpr int64_t kMostRetrySeconds = 60;

// Whether an answer says that the same request may succeed later.
bool IsLater(int status) { return status == 429 || status == 503; }

// Whether there may be room for a result when somebody has deleted files.
bool IsFull(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

std::chrono::seconds RetryAfter(const HttpResponse& response) {
  int64_t seconds = 0;
  for (const auto& [name, value] : response.headers) {
    if (!EqualsIgnoringCase(name, "Retry-After")) continue;
    std::from_chars(value.data(), value.data() + value.size(), seconds);
  }
  return std::chrono::seconds(std::clamp(seconds, kLeastRetrySeconds, kMostRetrySeconds));
}

BatchResult ResultOf(const BatchCall& call) {
  const HttpResponse& response = call.response();
  return {.custom_id = call.line().custom_id,
          .http_status = response.status,
          .request_id = call.request_id(),
          .body = response.body};
}

BatchResult Expired(const std::string& custom_id) {
  return {.custom_id = custom_id,
          .code = "batch_expired",
          .message = "the batch's completion window ended before this line was answered"};
}

}  // namespace

BatchRunner::BatchRunner(ServerContext* server, FileStore* files, BatchStore* batches,
                         int concurrency)
    : server_(server),
      files_(files),
      batches_(batches),
      concurrency_(concurrency),
      work_(context_.get_executor()),
      timer_(context_) {
  limits_.max_line_bytes = server->options.max_body_bytes;
  handler_ = std::make_unique<ApiHandler>(
      server, [this](std::function<void()> task) { asio::post(context_, std::move(task)); });
  thread_ = std::thread([this] { Loop(); });
  Wake();
}

BatchRunner::~BatchRunner() { Stop(); }

void BatchRunner::Wake() {
  asio::post(context_, [this] { Tick(); });
}

void BatchRunner::Stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    is_stopping_ = true;
    for (const auto& run : runs_) CancelCalls(run.get());
    runs_.clear();
    context_.stop();
  });
  thread_.join();
  handler_.reset();
}

// An exception (out of memory) costs what was to be done at that moment, and not the thread.
void BatchRunner::Loop() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (...) {
      handler_->OnException("batch", "").IgnoreError();
    }
  }
}

void BatchRunner::Tick() {
  timer_.expires_after(runs_.empty() ? std::chrono::milliseconds(kIdleBatchTick) : kBatchTick);
  timer_.async_wait([this](const auto& error) {
    if (!error) Tick();
  });
  Advance();
}

void BatchRunner::Advance() {
  const Clock::time_point now = Clock::now();
  if (now - swept_ >= kSweepInterval) {
    swept_ = now;
    files_->DeleteExpired(UnixNow());
  }
  TakeNew();
  for (const auto& run : runs_) {
    for (size_t i = 0; i < run->calls.size(); ++i) {
      const std::shared_ptr<BatchCall> call = run->calls[i];
      call->OnTick(now);
    }
  }
  for (const auto& run : runs_) AddDelayed(run.get());
  EndRuns();
  Fill();
  ShowProgress();
}

void BatchRunner::TakeNew() {
  for (const std::shared_ptr<const BatchRecord>& batch : batches_->Unfinished()) {
    if (is_stopping_) return;
    const bool runs = std::any_of(runs_.begin(), runs_.end(),
                                  [&batch](const auto& run) { return run->batch.id == batch->id; });
    if (runs) continue;
    const bool must_end = batch->status == BatchStatus::kCancelling || batch->expires <= UnixNow();
    if (batch->status == BatchStatus::kValidating && !must_end) {
      Check(*batch);
    } else if (must_end || (runs_.size() < kMaxRuns && !OwnerHasRun(batch->owner))) {
      StartRun(*batch);
    }
  }
}

bool BatchRunner::OwnerHasRun(uint64_t owner) const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [owner](const auto& run) { return run->batch.owner == owner; });
}

// Reads a new batch's whole input.
void BatchRunner::Check(BatchRecord batch) {
  absl::Status checked =
      files_->Find(batch.input_file, batch.owner) == nullptr
          ? absl::NotFoundError("the input file was deleted")
          : CheckBatchInput(
                files_->PathOf(batch.input_file), limits_, [this] { return is_stopping_; }, &batch);
  if (!checked.ok()) {
    batch.faults.push_back({"input_file", std::string(MessageOf(checked))});
  }
  batch.Become(batch.faults.empty() ? BatchStatus::kInProgress : BatchStatus::kFailed, UnixNow());
  Save(batch);
  server_->dependencies.log->Info(
      "a batch was checked",
      {{"batch", batch.id}, {"lines", batch.total}, {"faults", int64_t(batch.faults.size())}});
  Wake();  // it may run now
}

void BatchRunner::StartRun(BatchRecord batch) {
  auto run = std::make_unique<Run>();
  run->batch = std::move(batch);
  absl::StatusOr<std::unique_ptr<BatchJob>> job = BatchJob::Open(&run->batch, limits_, files_);
  if (!job.ok()) {
    Fail(run.get(), job.status());
    return;
  }
  run->job = *std::move(job);
  runs_.push_back(std::move(run));
}

// Ends the runs that are through, that were cancelled, and that took too long.
void BatchRunner::EndRuns() {
  const int64_t now = UnixNow();
  for (auto it = runs_.begin(); it != runs_.end();) {
    Run* const run = it->get();
    const std::shared_ptr<const BatchRecord> kept = batches_->Find(run->batch.id, run->batch.owner);
    const bool is_through = run->is_read && run->calls.empty() && run->delayed.empty();
    if (HasEnded(run->batch.status)) {
      // It failed.
    } else if (kept != nullptr && kept->status == BatchStatus::kCancelling) {
      run->batch.Become(BatchStatus::kCancelling,
                        kept->since[static_cast<size_t>(BatchStatus::kCancelling)]);
      CutShort(run, BatchStatus::kCancelled);
    } else if (is_through) {
      if (run->finish_not_before <= Clock::now()) Finish(run, BatchStatus::kCompleted);
    } else if (run->batch.expires <= now) {
      CutShort(run, BatchStatus::kExpired);
    }
    it = HasEnded(run->batch.status) ? runs_.erase(it) : std::next(it);
  }
}

void BatchRunner::CutShort(Run* run, BatchStatus last) {
  absl::Status status;
  for (Delayed& delayed : run->delayed) delayed.not_before = {};
  AddDelayed(run);
  if (last == BatchStatus::kExpired) status = ExpireRest(run);
  CancelCalls(run);
  status.ok() ? Finish(run, last) : Fail(run, status);
}

absl::Status BatchRunner::AddResult(Run* run, const BatchResult& result, std::string_view outcome) {
  HEDDLE_RETURN_IF_ERROR(run->job->Add(result, &run->batch));
  server_->dependencies.metrics->CountBatchLine(outcome);
  return absl::OkStatus();
}

// Adds a result without an answer for each line that has none.
absl::Status BatchRunner::ExpireRest(Run* run) {
  const auto add = [this, run](const BatchLine& line) {
    return AddResult(run, Expired(line.custom_id), "expired");
  };
  for (const auto& call : run->calls) HEDDLE_RETURN_IF_ERROR(add(call->line()));
  for (const Delayed& delayed : run->delayed) HEDDLE_RETURN_IF_ERROR(add(delayed.line));
  while (true) {
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<BatchLine> line, run->job->Next());
    if (!line.has_value()) return absl::OkStatus();
    HEDDLE_RETURN_IF_ERROR(add(*line));
  }
}

// Ends the batch with a fault. Lines that were answered stay, if they can be told.
void BatchRunner::Fail(Run* run, const absl::Status& why) {
  CancelCalls(run);
  run->batch.faults.push_back({"storage", std::string(MessageOf(why))});
  server_->dependencies.log->Error("a batch failed",
                                   {{"batch", run->batch.id}, {"error", MessageOf(why)}});
  if (run->job != nullptr) {
    run->job->Publish(&run->batch, UnixNow()).IgnoreError();
  }
  run->batch.Become(BatchStatus::kFailed, UnixNow());
  Save(run->batch);
}

void BatchRunner::Finish(Run* run, BatchStatus last) {
  BatchRecord& batch = run->batch;
  batch.Become(BatchStatus::kFinalizing, UnixNow());
  Save(batch);
  const absl::Status published = run->job->Publish(&batch, UnixNow());
  if (IsFull(published) && last == BatchStatus::kCompleted) {
    run->finish_not_before = Clock::now() + kFullInterval;
    return;
  }
  if (!published.ok()) return Fail(run, published);
  batch.Become(last, UnixNow());
  Save(batch);
  server_->dependencies.log->Info("a batch ended", {{"batch", batch.id},
                                                    {"status", BatchStatusName(batch.status)},
                                                    {"succeeded", batch.succeeded},
                                                    {"failed", batch.failed}});
}

void BatchRunner::Save(const BatchRecord& batch) {
  if (HasEnded(batch.status)) server_->dependencies.metrics->CountBatch(batch.status);
  const absl::Status saved = batches_->Save(batch);
  if (saved.ok()) return;
  server_->dependencies.log->Error("a batch cannot be written to its folder",
                                   {{"batch", batch.id}, {"error", MessageOf(saved)}});
}

void BatchRunner::CancelCalls(Run* run) {
  for (const auto& call : run->calls) call->Cancel(handler_.get());
  num_calls_ -= static_cast<int>(run->calls.size());
  run->calls.clear();
}

// How many lines may run now. Held ones are not among the running sequences.
int BatchRunner::NumAllowed() const {
  const Readiness readiness = server_->readiness;
  if (readiness != Readiness::kReady && readiness != Readiness::kLeaving) return 0;
  const EngineStats stats = server_->dependencies.generation->Stats();
  if (stats.state != EngineState::kServing) return 0;
  int own = 0;
  for (const auto& run : runs_) {
    own += static_cast<int>(std::count_if(run->calls.begin(), run->calls.end(),
                                          [](const auto& call) { return !call->is_held(); }));
  }
  if (stats.waiting_requests > own) return 0;
  return stats.waiting_requests + stats.running_sequences > own ? 1 : concurrency_;
}

void BatchRunner::Fill() {
  const int allowed = NumAllowed();
  HoldBeyond(allowed);
  size_t without = 0;  // runs in a row that had no line
  while (num_calls_ < allowed && without < runs_.size()) {
    without = StartLine(runs_.front().get()) ? 0 : without + 1;
    std::rotate(runs_.begin(), runs_.begin() + 1, runs_.end());
  }
  shown_calls_.store(num_calls_, std::memory_order_relaxed);
}

void BatchRunner::Count(BatchFigures* figures) const {
  figures->lines_running = shown_calls_.load(std::memory_order_relaxed);
  figures->lines_held = shown_held_.load(std::memory_order_relaxed);
}

// Starts the run's next line, if it has one.
bool BatchRunner::StartLine(Run* run) {
  if (HasEnded(run->batch.status)) return false;
  absl::StatusOr<std::optional<BatchLine>> line = NextLine(run);
  if (!line.ok()) {
    Fail(run, line.status());  // EndRuns takes it away
    return false;
  }
  if (!line->has_value()) return false;
  auto call = std::make_shared<BatchCall>(
      **std::move(line), ++num_started_, [this](std::shared_ptr<BatchCall> done) {
        asio::post(context_, [this, done = std::move(done)] { OnDone(done); });
      });
  run->calls.push_back(call);
  ++num_calls_;
  call->Begin(run->batch, RandomId("batch_req_"), handler_.get());
  return true;
}

absl::StatusOr<std::optional<BatchLine>> BatchRunner::NextLine(Run* run) {
  if (!run->delayed.empty() && !run->delayed.front().result.has_value() &&
      run->delayed.front().not_before <= Clock::now()) {
    BatchLine line = std::move(run->delayed.front().line);
    run->delayed.pop_front();
    return line;
  }
  // While lines wait, others would be told to wait, too.
  if (run->is_read || !run->delayed.empty()) return std::nullopt;
  absl::StatusOr<std::optional<BatchLine>> line = run->job->Next();
  run->is_read = line.ok() && !line->has_value();
  return line;
}

// Holds all lines in progress but those that began first.
void BatchRunner::HoldBeyond(int allowed) {
  std::vector<std::shared_ptr<BatchCall>> calls;
  for (const auto& run : runs_) calls.insert(calls.end(), run->calls.begin(), run->calls.end());
  std::sort(calls.begin(), calls.end(),
            [](const auto& a, const auto& b) { return a->number() < b->number(); });
  const int64_t held =
      std::max<int64_t>(0, static_cast<int64_t>(calls.size()) - std::max(allowed, 0));
  for (const auto& call : calls) call->Hold(allowed-- <= 0);
  shown_held_.store(held, std::memory_order_relaxed);
}

void BatchRunner::OnDone(const std::shared_ptr<BatchCall>& call) {
  for (const auto& run : runs_) {
    if (std::erase(run->calls, call) == 0) continue;
    --num_calls_;
    call->Report(handler_.get());
    TakeAnswer(run.get(), call);
    break;
  }
  EndRuns();
  Fill();
}

void BatchRunner::TakeAnswer(Run* run, const std::shared_ptr<BatchCall>& call) {
  if (IsLater(call->response().status)) {
    server_->dependencies.metrics->CountBatchLine("delayed");
    run->delayed.push_back({call->TakeLine(), Clock::now() + RetryAfter(call->response()), {}});
    return;
  }
  BatchResult result = ResultOf(*call);
  TakeResult(run, call->TakeLine(), std::move(result));
}

void BatchRunner::TakeResult(Run* run, BatchLine line, BatchResult result) {
  const absl::Status added = AddResult(run, result, result.succeeded() ? "succeeded" : "failed");
  if (added.ok()) return;
  if (!IsFull(added)) return Fail(run, added);
  const bool is_news = std::none_of(run->delayed.begin(), run->delayed.end(),
                                    [](const Delayed& one) { return one.result.has_value(); });
  if (is_news) {
    server_->dependencies.log->Warning("a batch waits for room for its results",
                                       {{"batch", run->batch.id}, {"error", MessageOf(added)}});
  }
  run->delayed.push_back({std::move(line), Clock::now() + kFullInterval, std::move(result)});
}

// Tries again to add results that there was no room for.
void BatchRunner::AddDelayed(Run* run) {
  const Clock::time_point now = Clock::now();
  for (auto it = run->delayed.begin(); it != run->delayed.end();) {
    if (!it->result.has_value() || it->not_before > now) {
      ++it;
      continue;
    }
    const absl::Status added =
        AddResult(run, *it->result, it->result->succeeded() ? "succeeded" : "failed");
    if (!added.ok() && !IsFull(added)) return Fail(run, added);
    if (!added.ok()) it->not_before = now + kFullInterval;
    it = added.ok() ? run->delayed.erase(it) : std::next(it);
  }
}

void BatchRunner::ShowProgress() {
  for (const auto& run : runs_) {
    const int64_t done = run->batch.succeeded + run->batch.failed;
    if (done == run->shown) continue;
    run->shown = done;
    batches_->Show(run->batch);
  }
}

}  // namespace heddle::server
