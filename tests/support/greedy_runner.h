// Drives an executor by hand, one sequence and no scheduler: for tests of the forward itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/adapter/adapter_image.h"
#include "engine/model/local_executor.h"
#include "engine/step.h"

namespace heddle::test {

struct GreedyRun {
  std::vector<engine::TokenId> ids;  // generated
  std::vector<float> first_logits;   // [vocab] after the prompt
};

// The adapter of a run; its pages are the last ones that the run's sequence would take.
struct RunAdapter {
  std::shared_ptr<const engine::AdapterImage> image;  // null: none
  float scale = 1.0f;
};

struct GreedyOptions {
  int32_t max_tokens = 1;
  int32_t prefill_chunk = 1 << 30;    // rows per step while the prompt is read
  uint64_t page_seed = 1;             // pages are taken in an order shuffled by this
  std::vector<engine::TokenId> stop;  // ends the run; is part of ids
  RunAdapter adapter;
};

// Greedy continuation of `prompt`. Aborts the test program on an executor error.
GreedyRun RunGreedy(engine::LocalExecutor& executor, std::span<const engine::TokenId> prompt,
                    const GreedyOptions& options);

// Logits of every position of `prompt`, [prompt.size(), vocab], from one forward per chunk.
std::vector<float> AllLogits(engine::LocalExecutor& executor,
                             std::span<const engine::TokenId> prompt, int32_t prefill_chunk,
                             const RunAdapter& adapter = {});

// The pooled state of `prompt`, [hidden], read in chunks of at most `prefill_chunk` rows.
// `second_begin`: its first token of the type 1, -1: none has it; only if there is one chunk.
std::vector<float> PooledState(engine::LocalExecutor& executor,
                               std::span<const engine::TokenId> prompt, engine::Pooling pooling,
                               int32_t prefill_chunk, int32_t second_begin = -1);

}  // namespace heddle::test
