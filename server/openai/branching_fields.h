// The fields of the objects that ask for several answers, or for an answer in branches: search,
// parallel, and what the choices of a request may differ in (docs/parallel-decoding.md).
#pragma once

#include "server/openai/sampling_fields.h"
#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr double kMaxMarkBytes = 1024;
inline constexpr double kMaxSamples = 128;

inline constexpr Field kSearchPrune[] = {
    {"tokens", kInteger, 4, 65536, "32", "between two looks, and of each sample that are compared"},
    {"similarity", kNumber, 0.5, 1, "0.9",
     "of the last tokens, from which a sample counts as another one"},
};

inline constexpr Field kSearch[] = {
    {"kind", kString, 0, 32, "self_consistency",
     "self_consistency: the answer on which most samples agree; best_of_n: the likeliest sample"},
    {"rank_by", kString, 0, 32, "logprob",
     "best_of_n: logprob, or reward, the score of the operator's reward model (--reward-url)"},
    {"samples", kInteger, 1, kMaxSamples, "16", "at most"},
    {"wave", kInteger, 1, kMaxSamples, "4", "samples that are begun at a time, while votes differ"},
    {"answer", kString, 0, kMaxMarkBytes, "(the whole text)",
     "an expression: what its first group finds last in a sample is the sample's vote"},
    {"answer_at", kString, 0, kMaxMarkBytes, "",
     "in its place, where a grammar makes the answers JSON: the pointer of the value that votes"},
    {"confidence", kNumber, 0.5, 1, "0.95",
     "end when the leading answer will win with this probability; 1: when it cannot be caught"},
    {"prune", kObject, 0, kInfinity, "", "cut samples before their end", false, kSearchPrune},
};

inline constexpr Field kParallelCustom[] = {
    {"fork_at", kString, 1, kMaxMarkBytes, "", "the model asks for branches when it has written it",
     true},
    {"items_from", kString, 0, kMaxMarkBytes, "",
     "the items, one for each branch, stand behind the last of these"},
    {"items", kString, 1, kMaxMarkBytes, "", "an expression whose first group is an item's id",
     true},
    {"before", kString, 0, kMaxMarkBytes, "", "put between fork_at and the branches"},
    {"header", kString, 1, kMaxMarkBytes, "",
     "each branch begins with it; {id} stands for the item's id", true},
    {"branch_begin", kString, 0, kMaxMarkBytes, "",
     "where a branch writes it, one more branch_end belongs to the branch"},
    {"branch_end", kString, 1, kMaxMarkBytes, "", "ends a branch", true},
    {"cut_end", kString, 0, kMaxMarkBytes, "(branch_end)", "put behind a branch without an end"},
    {"after", kString, 0, kMaxMarkBytes, "", "put behind each branch"},
    {"join", kString, 0, 32, "text",
     "text: branches are read one behind the other; concurrent: none sees another"},
    {"tail", kString, 0, kMaxMarkBytes, "", "put behind all branches"},
};

inline constexpr Field kParallel[] = {
    {"format", kString, 0, 64, "auto",
     "how the model asks for branches: multiverse, threadweaver, apr, parathinker, custom, or "
     "auto, "
     "by its tokens"},
    {"max_branches", kInteger, 1, 64, "8", "of one fork; a larger one is plain text"},
    {"max_depth", kInteger, 0, 8, "2", "forks within branches; a deeper one is plain text"},
    {"max_branch_tokens", kInteger, 1, kMaxInt32, "(max_tokens)", "of one branch"},
    {"max_total_tokens", kInteger, 1, kMaxInt32, "(max_tokens)",
     "of all branches together, while max_tokens limits the longest way through them"},
    {"on_slow", kStringOrObject, 0, kMaxMarkBytes, "wait",
     "wait, or {\"cut_after_s\": seconds} after which a fork's branches end where they are"},
    {"stream_order", kString, 0, 32, "tagged",
     "tagged: text comes as it is drawn, with its branch; sequential: one branch behind the other"},
    {"custom", kObject, 0, kInfinity, "", "the format custom", false, kParallelCustom},
};

inline constexpr Field kChoiceSeed[] = {
    {"seed", kInteger, kMinInt64, kMaxUint64, "(that of the request, and the choice's number)", ""},
};
// Members in which the choices of a request may differ.
inline constexpr auto kChoice = Concat(kSamplingNumbers, kChoiceSeed);

}  // namespace heddle::server::fields
