// Runs batches, on a thread of its own: checks the input of new ones, makes each line a request of
// the same Handler that clients' requests go through, and adds the answers to the batch's files.
//
// Low priority. Live requests are those of clients. Beside live requests that run, one line runs,
// so that batches go on; while live requests wait, none does. What runs when they come is paused,
// and gives up its pages if others need them. All lines together are one client among those that
// share the machine (scheduler/client_shares.h).
//
// Turns. One batch of each owner runs at a time, the oldest; those of several owners take turns,
// line by line.
//
// Ends. Answers that say "later" (429, 503) are no results: their lines are tried again. Results
// for which the folder has no room wait in memory until it has, and no more lines of that batch
// begin. What is in the files of results has been done, and all else is done again by the next
// process. Threads: Wake, Stop and Count may be called from any thread; all else happens on the
// runner's own.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/batch/batch_figures.h"
#include "server/batch/batch_job.h"
#include "server/batch/batch_store.h"
#include "server/http/batch_call.h"

namespace heddle::server {

struct ServerContext;

class BatchRunner {
 public:
  // All pointers outlive the runner.
  BatchRunner(ServerContext* server, FileStore* files, BatchStore* batches, int concurrency);
  ~BatchRunner();  // Stop()

  void Wake();
  void Stop();
  // Sets the lines that run and those held.
  void Count(BatchFigures* figures) const;

 private:
  // A line whose answer was "later", or whose result has no room yet.
  struct Delayed {
    BatchLine line;
    Clock::time_point not_before;
    std::optional<BatchResult> result;
  };
  // A batch that runs.
  struct Run {
    BatchRecord batch;
    std::unique_ptr<BatchJob> job;
    std::vector<std::shared_ptr<BatchCall>> calls;  // in progress, the oldest first
    std::deque<Delayed> delayed;
    bool is_read = false;                 // the input has no more lines
    int64_t shown = 0;                    // results, when the batch was last shown to its owner
    Clock::time_point finish_not_before;  // its files have no room for what ends them
  };

  void Loop();
  void Tick();
  void Advance();
  void TakeNew();
  void Check(BatchRecord batch);
  void StartRun(BatchRecord batch);
  bool OwnerHasRun(uint64_t owner) const;
  void EndRuns();
  void CutShort(Run* run, BatchStatus last);
  absl::Status ExpireRest(Run* run);
  void AddDelayed(Run* run);
  absl::Status AddResult(Run* run, const BatchResult& result, std::string_view outcome);
  void Fail(Run* run, const absl::Status& why);
  void Finish(Run* run, BatchStatus last);
  void Save(const BatchRecord& batch);
  void CancelCalls(Run* run);
  int NumAllowed() const;
  void Fill();
  bool StartLine(Run* run);
  absl::StatusOr<std::optional<BatchLine>> NextLine(Run* run);
  void HoldBeyond(int allowed);
  void OnDone(const std::shared_ptr<BatchCall>& call);
  void TakeAnswer(Run* run, const std::shared_ptr<BatchCall>& call);
  void TakeResult(Run* run, BatchLine line, BatchResult result);
  void ShowProgress();

  ServerContext* server_;
  FileStore* files_;
  BatchStore* batches_;
  const int concurrency_;
  BatchInputLimits limits_;
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<Handler> handler_;
  std::deque<std::unique_ptr<Run>> runs_;  // the one whose turn is next comes first
  int num_calls_ = 0;                      // of all runs
  uint64_t num_started_ = 0;
  std::atomic<int64_t> shown_calls_ = 0;  // num_calls_ and those held, for Count
  std::atomic<int64_t> shown_held_ = 0;
  Clock::time_point swept_;  // when expired files were last deleted
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle::server
