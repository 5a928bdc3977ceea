// How models that think in parallel write it: where they ask for branches, how each branch begins
// and ends, and how the answer goes on behind all of them. A model's manner is a row of a table;
// clients may bring a row of their own ("custom").
//
// The text of a fork: the model writes up to `fork_at`, with an item for each branch. Behind that
// come `before` and, for each item, a branch: `header` with the item's id, what the model writes up
// to `branch_end` (or `cut_end`, where it did not come as far), and `after`. Behind all branches
// comes `tail`, and the model goes on.
// The format "apr" is other: its branches begin with prompts of their own. So is "parathinker": its
// branches begin behind the prompt, unasked, with the numbers from 1 as ids.
// Sources: Yang et al., "Multiverse", 2025, and its engine; Lian et al., "ThreadWeaver", 2025, and
// its agent loop; Wen et al., "ParaThinker", 2025, and its fork of vLLM.
// Thread-safety: immutable data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/parallel/apr_trace.h"
#include "server/text/text_codec.h"

namespace heddle::server {

enum class ParallelJoin : uint8_t {
  kText,        // a branch is read behind the ones before it
  kConcurrent,  // branches do not see each other, and stay as they were computed
  kCalls,       // branches have prompts of their own, and what they have found takes the place of
                // the calls that the model has written (apr_trace.h)
};

struct ParallelFormat {
  std::string name;
  ParallelJoin join = ParallelJoin::kText;
  std::string fork_at;
  std::string items_from;  // items are read behind the last of these; empty: in all that the branch
                           // has written since it began, or since its last join
  std::string items;       // an expression whose first group is an item's id
  std::string before;
  std::string header;        // "{id}" stands for the item's id
  std::string branch_begin;  // where it is nested in a branch, one more `branch_end` belongs to it
  std::string branch_end;
  std::string cut_end;  // "{id}" stands for the item's id
  std::string after;
  std::string tail;   // with kCalls: goes in the place of restart_at()
  std::string shown;  // further marks that an answer shows where they are special tokens
  // As many branches as the client wants begin behind the prompt; branch i has the segment i
  // (ContextPart::segment), and ends at any branch's `cut_end`, at `answer_end` or at `other_end`,
  // in whose place comes its own.
  bool at_start = false;
  std::string answer_end;
  std::string other_end;
};

// The row of a name; null: there is none.
const ParallelFormat* FindParallelFormat(std::string_view name);
// The row whose marks are tokens of the model; null: there is none. `has_segments`: the model tells
// segments of a context apart.
const ParallelFormat* DetectParallelFormat(const TextCodec& codec, bool has_segments);
// The names of all rows, for messages.
std::string ParallelFormatNames();

// A format as a model's tokens. Immutable; any thread.
class ParallelSyntax {
 public:
  // `codec` outlives the result. INVALID_ARGUMENT: `items` is no expression, or a text cannot be
  // encoded.
  static absl::StatusOr<std::shared_ptr<const ParallelSyntax>> Make(ParallelFormat format,
                                                                    const TextCodec* codec);
  ~ParallelSyntax();

  const ParallelFormat& format() const { return format_; }
  bool is_concurrent() const { return format_.join == ParallelJoin::kConcurrent; }
  bool is_calls() const { return format_.join == ParallelJoin::kCalls; }
  bool at_start() const { return format_.at_start; }
  // With at_start(): the largest number whose header and end are tokens of the model.
  int32_t max_number() const { return static_cast<int32_t>(numbers_.size()); }
  // With at_start(): the token at which the answer ends, -1: none; and those where branches end.
  TokenId answer_end() const { return answer_end_; }
  std::span<const TokenId> branch_ends() const { return branch_ends_; }
  // With at_start(): the tokens that no branch may draw, since they begin others.
  std::span<const TokenId> beginnings() const { return beginnings_; }
  // The tokens of a whole prompt; none if it cannot be encoded.
  std::vector<TokenId> Prompt(std::string_view text) const;
  std::vector<TokenId> Text(std::string_view text) const;  // of a text within
  // A text at which a run ends and goes on behind another one; empty: there is none.
  std::string_view restart_at() const { return is_calls() ? kAprResults : std::string_view(); }
  // The ids of the items in `text`, which ends at `fork_at`; `limit` of them at most. None if the
  // text is not what the format says, or if they stand in more than its last kMaxItemBytes.
  // RESOURCE_EXHAUSTED: the client's expression takes too long.
  absl::StatusOr<std::vector<std::string>> Items(std::string_view text, size_t limit) const;
  static constexpr size_t kMaxItemBytes = 8192;
  // The first tokens of an item's branch; none if there are none.
  std::vector<TokenId> Header(std::string_view id) const;

  // Marks that are one token of the model; -1: several.
  TokenId fork_token() const { return fork_token_; }
  TokenId end_token() const { return end_token_; }
  std::span<const TokenId> before() const { return before_; }
  // `number` counts the branches of a fork from 0.
  std::span<const TokenId> CutEnd(size_t number) const;
  std::span<const TokenId> after() const { return after_; }
  std::span<const TokenId> tail() const { return tail_; }
  // Texts whose special tokens an answer shows.
  std::vector<std::string_view> Marks() const;

 private:
  struct Expression;
  // The tokens of a branch with a number for an id.
  struct Numbered {
    TokenId header;
    TokenId end;
  };

  ParallelSyntax(ParallelFormat format, const TextCodec* codec);
  absl::Status FindNumbers();

  const ParallelFormat format_;
  const TextCodec& codec_;
  std::unique_ptr<Expression> items_;
  TokenId fork_token_ = -1, end_token_ = -1;
  std::vector<TokenId> before_, cut_end_, after_, tail_;
  std::vector<Numbered> numbers_;
  std::vector<TokenId> branch_ends_, beginnings_;
  TokenId answer_end_ = -1;
};

// The limits that a client sets to the branches of one answer. All limits hold at any time.
struct ParallelLimits {
  int32_t max_branches = 8;       // of one fork
  int32_t max_depth = 2;          // forks within branches
  int64_t max_branch_tokens = 0;  // of one branch, along its longest way; 0: no other limit
  int64_t max_total_tokens = 0;   // of the answer, over all branches
  double cut_after_seconds = 0;   // behind a fork, what still runs is cut; 0: it is waited for
  bool is_sequential = false;     // a stream has one branch behind the other

  static constexpr int32_t kMaxBranches = 64;      // of one fork
  static constexpr int32_t kMaxAllBranches = 512;  // of an answer
  static constexpr int32_t kMaxDepth = 8;
};

// The wish for an answer with branches; no syntax: there is none.
struct ParallelOptions {
  std::shared_ptr<const ParallelSyntax> syntax;
  ParallelLimits limits;
};

}  // namespace heddle::server
