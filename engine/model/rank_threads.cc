#include "engine/model/rank_threads.h"

#include <pthread.h>

#include <bit>
#include <string>
#include <utility>

#include "engine/model/rank_binding.h"
#include "kernels/await.h"

namespace heddle::engine {
namespace {

// As often as in collectives, a rank that has nothing to do lets others run before it sleeps.
constexpr int kYieldsBetweenSteps = 20;

}  // namespace

RankThreads::RankThreads(std::vector<std::unique_ptr<RankWorker>> workers,
                         std::vector<std::shared_ptr<kernels::Communicator>> groups,
                         std::vector<std::vector<int>> cpus, int32_t max_steps)
    : workers_(std::move(workers)),
      groups_(std::move(groups)),
      cpus_(std::move(cpus)),
      steps_(max_steps),
      // A rank may be behind by the two halves of each step that is not joined.
      jobs_(std::bit_ceil<size_t>(2 * max_steps + 2)),
      done_(workers_.size()) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    threads_.emplace_back([this, i] { Work(i); });
    const std::string name = "rank-" + std::to_string(i + 1);
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

RankThreads::~RankThreads() {
  Post({});  // no plan: the end
  for (std::thread& thread : threads_) thread.join();
}

std::span<const int> RankThreads::CpusOf(size_t rank) const {
  return rank < cpus_.size() ? std::span<const int>(cpus_[rank]) : std::span<const int>();
}

// Returns the number of jobs up to this one.
uint32_t RankThreads::Post(const Job& next) {
  const uint32_t job = begun_.load(std::memory_order_relaxed);
  jobs_[job % jobs_.size()] = next;
  begun_.store(job + 1, std::memory_order_release);
  begun_.notify_all();
  return job + 1;
}

// The head's steps may come from several threads, of which most come from one.
void RankThreads::Begin(const StepPlan& plan, Adapters adapters) {
  if (bound_ != std::this_thread::get_id()) {
    bound_ = std::this_thread::get_id();
    static_cast<void>(BindThisThread(CpusOf(0)));  // worked when the rank was loaded
  }
  Step& step = steps_.next();
  step.plan = &plan;
  step.adapters.assign(adapters.begin(), adapters.end());
  step.layers_end = Post({.plan = &plan, .adapters = step.adapters});
  step.logits_end = step.layers_end;
  steps_.Push();
}

void RankThreads::BeginLogits() {
  Step& step = steps_.oldest();
  step.logits_end = Post({.plan = step.plan, .is_logits = true});
}

void RankThreads::WaitFor(size_t worker, uint32_t jobs) {
  int spins = kernels::kMaxSpins;
  kernels::Await(done_[worker].jobs, kYieldsBetweenSteps, &spins,
                 [jobs](uint32_t done) { return static_cast<int32_t>(done - jobs) >= 0; });
}

absl::Status RankThreads::Join(const absl::Status& head) {
  if (!head.ok()) return Fail(head);
  Step& step = steps_.oldest();
  for (size_t i = 0; i < workers_.size(); ++i) {
    WaitFor(i, workers_[i]->stage() == 0 ? step.logits_end : step.layers_end);
  }
  step.adapters.clear();
  steps_.Pop();
  const absl::Status status = groups_.front()->status();
  return status.ok() ? status : Fail(status);
}

absl::Status RankThreads::Fail(const absl::Status& why) {
  Abort(why);
  const uint32_t begun = begun_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < workers_.size(); ++i) WaitFor(i, begun);
  steps_.Clear();
  return groups_.front()->status();
}

// The first group has the first reason: everybody aborts it first.
void RankThreads::Abort(const absl::Status& why) {
  for (const auto& group : groups_) group->Abort(why);
}

void RankThreads::Work(size_t worker) {
  static_cast<void>(BindThisThread(CpusOf(worker + 1)));  // worked when the rank was loaded
  int spins = kernels::kMaxSpins;
  RankWorker& rank = *workers_[worker];
  for (uint32_t next = 0;; ++next) {
    kernels::Await(begun_, kYieldsBetweenSteps, &spins,
                   [next](uint32_t begun) { return begun != next; });
    const Job job = jobs_[next % jobs_.size()];
    if (job.plan == nullptr) return;
    const absl::Status status =
        job.is_logits ? rank.RunLogits(*job.plan) : rank.RunStage(*job.plan, job.adapters);
    if (!status.ok()) Abort(status);
    done_[worker].jobs.store(next + 1, std::memory_order_release);
    done_[worker].jobs.notify_one();
  }
}

}  // namespace heddle::engine
