// Workers that see each other's tokens as they come: the branches of one request whose attention
// covers the blocks of the others while these grow.
//
// Each worker has a block behind the common prompt, which begins with given tokens and goes on with
// those that it draws. Blocks grow in lockstep: one step has one row of each worker, or none. Row t
// of a worker (from 0) sees the prompt, then the first t rows of each other worker's block (or as
// many as it has) in the order of the branches, and behind them its own rows up to t. So what a
// worker draws follows from the tokens alone, and not from when which step ran: a request that was
// preempted computes the same rows again. Since no row sees those of its own step, it may be
// planned while the step before it runs, as other rows are: what that one draws, or whether an
// answer ends with it, changes no row before the next but one.
//
// Keys have the positions that they have directly behind the prompt. Seen by others they are
// further away: pieces of a plan (engine::ContextPiece) say by how much queries are rotated further
// for each block. A worker whose answer has ended stays as it is for the others.
//
// In the scheduler a request is forked when its prompt is computed, as for n answers; each block
// begins on a page of its own. When one worker is preempted, all are: the request is unforked.
// Source: Rodionov et al., "Hogwild! Inference", 2025 (the combined layout, own block last).
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_spans.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

// Makes the branches of a new request its workers. REQUIRES: Validate is OK.
void BeginWorkers(RequestState* request);

// Whether a worker with a token to run may run it: each other one whose answer goes on has one,
// too, which a step in flight may be about to draw, and all rows that this one's next row sees have
// been planned before. So workers behind others, whose draws were left out, run alone until they
// are no more. REQUIRES: the request is forked.
bool IsReady(const Sequence& worker);

// How many tokens of its block a worker keeps for the others when its answer ends: what it has run.
// A token that ended the answer is not seen, though a step in flight may have its row; neither is
// the last one of a worker that is cancelled, unless others have a row already that sees it.
int32_t NumKept(const Sequence& worker, FinishReason reason);

// Adds the spans of what the worker's last row sees in a group of layers, itself included.
engine::GroupSpans::Range WriteWorkerSpans(const Sequence& worker, int32_t group,
                                           int32_t page_tokens, std::vector<engine::KvSpan>* spans);

// Adds the pieces that these spans are made of; none if they are in plain order.
void WriteWorkerPieces(const Sequence& worker, std::vector<engine::ContextPiece>* pieces);

}  // namespace heddle::scheduler
