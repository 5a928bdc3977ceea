#include "engine/model/rank_threads.h"

#include <pthread.h>

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
                         std::shared_ptr<kernels::Communicator> communicator,
                         std::vector<std::vector<int>> cpus)
    : workers_(std::move(workers)), communicator_(std::move(communicator)), cpus_(std::move(cpus)) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    threads_.emplace_back([this, i] { Work(i); });
    const std::string name = "rank-" + std::to_string(i + 1);
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

RankThreads::~RankThreads() {
  stop_.store(true, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::span<const int> RankThreads::CpusOf(size_t rank) const {
  return rank < cpus_.size() ? std::span<const int>(cpus_[rank]) : std::span<const int>();
}

// The head's steps may come from several threads, of which most come from one.
void RankThreads::Begin(const StepPlan& plan, RankWorker::Adapters adapters) {
  if (bound_ != std::this_thread::get_id()) {
    bound_ = std::this_thread::get_id();
    static_cast<void>(BindThisThread(CpusOf(0)));  // worked when the rank was loaded
  }
  plan_ = &plan;
  adapters_.assign(adapters.begin(), adapters.end());
  done_.store(0, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_all();
}

absl::Status RankThreads::Join(const absl::Status& head) {
  if (!head.ok()) communicator_->Abort(head);
  int spins = kernels::kMaxSpins;
  const auto all = static_cast<uint32_t>(threads_.size());
  kernels::Await(done_, kYieldsBetweenSteps, &spins, [all](uint32_t done) { return done == all; });
  adapters_.clear();
  return communicator_->status();
}

void RankThreads::Work(size_t worker) {
  static_cast<void>(BindThisThread(CpusOf(worker + 1)));  // worked when the rank was loaded
  int spins = kernels::kMaxSpins;
  for (uint32_t last = 0;; ++last) {
    kernels::Await(begun_, kYieldsBetweenSteps, &spins,
                   [last](uint32_t now) { return now != last; });
    if (stop_.load(std::memory_order_relaxed)) return;
    const absl::Status status = workers_[worker]->Run(*plan_, adapters_);
    if (!status.ok()) communicator_->Abort(status);
    done_.fetch_add(1, std::memory_order_acq_rel);
    done_.notify_one();
  }
}

}  // namespace heddle::engine
