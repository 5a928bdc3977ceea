// Takes tokens and finds masks of allowed tokens on threads of its own, while the engine's thread
// books a step and the device runs the next one.
//
// Turns. A search has a slice of work at a time, twice as long each time, and waits behind those
// that had fewer: so a grammar that takes long holds up no other, and what it found in a slice it
// knows in the next. First slices have a thread of their own, which nothing slow ever runs on; all
// others share one of low priority.
//
// Thread-safety: Find by one thread; a Search may be waited for by it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/ids.h"

namespace heddle::engine {

class MaskAhead {
 public:
  using Mask = absl::StatusOr<std::shared_ptr<const grammar::TokenMask>>;

  // Work of the first slice: some 2 ms. Masks of most places are found in a hundredth of it.
  static constexpr int64_t kFirstSlice = 100'000;

  // A matcher that is to take tokens, which its masks allow, and then to find the next mask.
  // Whoever asked gets it back when it is over.
  class Search {
   public:
    Search(grammar::Matcher matcher, std::vector<TokenId> tokens)
        : matcher_(std::move(matcher)), tokens_(std::move(tokens)) {}

    // Where it stands when it is over.
    grammar::Matcher TakeMatcher() { return std::move(matcher_); }
    const Mask& mask() const { return *mask_; }

   private:
    friend class MaskAhead;
    bool Go(int64_t max_items, grammar::Matcher::IfBusy if_busy);

    grammar::Matcher matcher_;
    std::vector<TokenId> tokens_;  // not taken yet
    int64_t slice_ = kFirstSlice;
    std::optional<Mask> mask_;
    bool is_over_ = false;      // GUARDED_BY the mutex of MaskAhead, like the next
    bool is_unwanted_ = false;  // nobody will wait for it
  };

  MaskAhead() = default;
  MaskAhead(const MaskAhead&) = delete;
  MaskAhead& operator=(const MaskAhead&) = delete;
  ~MaskAhead();  // waits for the slices under way; searches that are not over never will be

  // The threads start with the first call.
  std::shared_ptr<Search> Find(grammar::Matcher matcher, std::vector<TokenId> tokens = {});

  // Whether the search is over; waits for it until `deadline`.
  bool IsOver(const Search& search, std::chrono::steady_clock::time_point deadline);
  // Lets go of it: it ends with the slice under way.
  void Drop(Search* search);

 private:
  using Queue = std::deque<std::shared_ptr<Search>>;

  void Run(bool is_first);
  std::shared_ptr<Search> Next(Queue* queue);

  std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable over_;
  // GUARDED_BY(mutex_), all of the following.
  Queue first_;  // had no slice yet
  Queue later_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace heddle::engine
