// Finds masks of allowed tokens on a thread of its own, while the engine's thread books a step and
// the device runs the next one.
//
// Thread-safety: Find by one thread; what it returns may be waited for by any.
#pragma once

#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"

namespace heddle::engine {

class MaskAhead {
 public:
  using Mask = absl::StatusOr<std::shared_ptr<const grammar::TokenMask>>;

  MaskAhead() = default;
  MaskAhead(const MaskAhead&) = delete;
  MaskAhead& operator=(const MaskAhead&) = delete;
  ~MaskAhead();  // what was asked for and not found yet is broken

  // The mask of where `matcher` stands. The thread starts with the first call.
  std::future<Mask> Find(grammar::Matcher matcher);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::packaged_task<Mask()>> tasks_;  // GUARDED_BY(mutex_)
  bool stop_ = false;                             // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace heddle::engine
