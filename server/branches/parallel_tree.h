// A model that thinks in branches (parallel_format.h), from its tokens to what runs next: finds
// where it asks for branches, says with which tokens each of them runs, and joins them. Decides
// alone; who owns it runs the requests. All limits of the client hold here.
//
// A branch is run by one request at a time. A request is called a run, and has a number.
// Text that is not as the format says is plain text: the branch goes on as if it had not asked. So
// is a fork that a limit does not allow.
//
// Thread-safety: none; belongs to the request's exchange. Pure but for names of contexts; time is
// an argument.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/branches/parallel_answer.h"
#include "server/generation.h"
#include "server/parallel/apr_trace.h"

namespace heddle::server {

using scheduler::ContextId;

// The orders of a step, to be carried out in this order.
struct ParallelOrders {
  struct Run {
    size_t number = 0;
    GenerationRequest request;
  };
  std::vector<size_t> stops;                  // runs whose tokens are not wanted any more
  std::vector<scheduler::ContextJoin> joins;  // side by side
  std::vector<Run> runs;                      // to be submitted
  std::vector<ContextId> drops;               // contexts that nobody needs
};

class ParallelTree {
 public:
  // Names a context that nothing has yet; 0: there are none.
  using NewContext = std::function<ContextId()>;

  // The arguments outlive the tree. `page_tokens`: at which branches side by side are aligned.
  // `max_context`: places of a sequence. REQUIRES: one prompt, one choice, parallel options.
  ParallelTree(const ApiRequest* request, const TextCodec* codec, int32_t page_tokens,
               int32_t max_context, NewContext new_context, ParallelAnswer* answer);

  void Begin(ParallelOrders* orders);
  // An event of a run, without error. Events of runs that are over are ignored.
  void Take(size_t run, GenerationEvent event, double now, ParallelOrders* orders);
  // Whether events of a run are waited for.
  bool Awaits(size_t run) const { return !done_ && branches_[run_of_[run]].run == run; }
  // Cuts branches that have run for longer than the client waits.
  void CutSlow(double now, ParallelOrders* orders);

  // The answer is complete. What still runs is to be cancelled.
  bool done() const { return done_; }
  bool length() const { return length_; }

  int64_t total_tokens() const { return total_; }  // drawn, or put in by the format
  int64_t critical_path() const { return critical_; }
  int64_t num_branches() const { return static_cast<int64_t>(branches_.size()) - 1; }
  // Every context that was named and not dropped yet.
  const std::vector<ContextId>& contexts() const { return contexts_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  enum class State : uint8_t { kRuns, kForked, kEnded };
  struct Branch {
    size_t parent = kNone;
    std::string path;
    int32_t depth = 0;
    size_t number = 0;  // among the branches of its fork
    State state = State::kRuns;
    std::vector<TokenId> tokens;  // with those of the prompt
    scheduler::ContextParts parts;
    ContextId context{};           // that its run leaves
    std::vector<ContextId> stale;  // to be dropped when its run has begun
    size_t run = kNone;
    uint64_t seed = 0;
    int32_t limit = 0;           // of places
    int64_t begun_at = 0;        // `length` before its first token
    int64_t length = 0;          // tokens from the answer's beginning, along the longest way
    std::vector<size_t> forked;  // its branches since its last fork
    size_t num_open = 0;         // of these
    size_t num_children = 0;     // over all forks
    double forked_at = 0;
    bool is_cut = false;  // ends when its branches are joined
    // Its text since its beginning, or its last join.
    std::unique_ptr<TokenStream> stream;
    std::string text;
    size_t searched = 0;
    int32_t nesting = 0;  // branches that are open in it, written by the model itself
    std::string before;   // of a format with calls: the trace before `text`
    std::vector<AprCall> calls;
  };
  enum class Found : uint8_t { kNothing, kFork, kEnd };
  // The share of a fork that each branch gets.
  struct ForkPlan {
    std::vector<std::vector<TokenId>> headers;
    int64_t forced = 0;          // tokens of all
    int32_t share = 0;           // places of each
    std::vector<AprCall> calls;  // of a format with calls
  };

  Branch& At(size_t index) { return branches_[index]; }
  const Branch& At(size_t index) const { return branches_[index]; }
  void StartText(Branch* branch);
  bool TakeToken(size_t index, const engine::SampledToken& token, bool is_last, double now,
                 ParallelOrders* orders);
  Found Search(Branch* branch, bool is_root);
  bool PlanFork(const Branch& branch, ForkPlan* plan);
  bool PlanHeaders(const Branch& branch, ForkPlan* plan);
  bool PlanRoom(const Branch& branch, size_t longest, ForkPlan* plan) const;
  bool Fork(size_t index, bool has_ended, double now, ParallelOrders* orders);
  void AddChild(size_t parent, size_t number, const ForkPlan& plan);
  void Submit(size_t index, ContextId from, ParallelOrders* orders);
  int64_t RoomOf(const Branch& branch) const;
  int64_t ClosingTokens() const;
  bool Force(size_t index, std::span<const TokenId> tokens);
  void AddMarks(size_t index, GenerationRequest* request) const;
  void GoOnInOnePiece(ParallelOrders* orders);
  void EndBranch(size_t index, bool is_marked, bool length, ParallelOrders* orders);
  void Join(size_t index, ParallelOrders* orders);
  // Branches with prompts of their own (parallel_calls.cc).
  std::string TraceOf(const Branch& branch) const;
  bool PlanCalls(const Branch& branch, ForkPlan* plan) const;
  void JoinCalls(size_t index, ParallelOrders* orders);
  bool Restart(size_t index, TokenId token, bool is_last, ParallelOrders* orders);
  void GoOnBehind(size_t index, std::string trace, std::span<const TokenId> put_in,
                  ParallelOrders* orders);
  void Cut(size_t index, ParallelOrders* orders);
  void Stop(Branch* branch, bool has_ended, ParallelOrders* orders);
  void Finish(bool length);
  void Count(int64_t tokens, Branch* branch);
  int32_t PlacesOf(const scheduler::ContextParts& parts, size_t length) const;
  ContextId Name();

  const GenerationRequest& pattern_;
  const TextCodec& codec_;
  const ParallelSyntax& syntax_;
  const ParallelLimits& limits_;
  const int32_t page_tokens_;
  const int32_t max_context_;
  const NewContext new_context_;
  ParallelAnswer& answer_;
  std::deque<Branch> branches_;
  std::vector<size_t> run_of_;  // [runs] branch
  std::vector<ContextId> contexts_;
  int64_t total_ = 0;
  int64_t critical_ = 0;
  bool done_ = false;
  bool length_ = false;
  bool items_take_too_long_ = false;  // nothing is forked any more
};

}  // namespace heddle::server
