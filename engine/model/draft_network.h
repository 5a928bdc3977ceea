// Drafters with weights: networks beside the model that guess its next tokens (draft models, EAGLE,
// MTP, Medusa). They run in the model's executor, on its device, behind the draws of a step.
//
// The attention layers of a network are further layers of the model's KV layout: its keys and
// values are in the same pages, at the same slots, as the model's. So the prefix cache, forks,
// preemption, swaps and windows need to know nothing of drafters. Which of the positions in a page
// a network has computed is known to the executor (docs/decisions/0053).
//
// A step has passes. Pass 0 is over the rows of the step, so that the network sees every position
// that the model sees. Each pass, the first one included, gives the next guess of each chain, one
// chain for each sequence that is drafted; a pass behind the first is over one row per chain.
//
// A network that guesses a block at once (DFlash) has two passes. Pass 0 writes the keys and values
// of the step's rows, from the model's hidden states, and has no chains. Pass 1 is over a block of
// rows for each chain: the token that was drawn last, and a mask for each guess. Rows of a block
// attend to the context and to each other, later rows included, and the row of a mask gives the
// guess of its place.
// Sources: Leviathan et al. 2023 (draft models); Li et al., "EAGLE", 2024 to 2025; Cai et al.,
// "Medusa", 2024; DeepSeek-AI, "DeepSeek-V3", 2024 (multi-token prediction); Chen et al.,
// "DFlash: Block Diffusion for Flash Speculative Decoding", 2026.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/ids.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/device.h"

namespace heddle::engine {

struct DraftTraits {
  // A feature that is no layer's stream but the final hidden state behind the last norm.
  static constexpr int32_t kFinalNormed = -1;

  std::string kind;  // "draft", "eagle", "eagle3", "mtp", "medusa": in metrics and log lines
  std::string text;  // for the start-up line: what it is and how large
  std::vector<KvLayer> kv_layers;  // its attention layers; empty: it keeps nothing
  // Streams of the model that it reads at each row, side by side in this order: the one that enters
  // layer i, n_layers for what leaves the last one, or kFinalNormed. All are [hidden] wide. Empty:
  // it reads tokens only.
  std::vector<int32_t> features;
  // A row reads the token behind its position (and the features at its position), as EAGLE and MTP
  // do; otherwise the token at its position. REQUIRES, if true: features.
  bool reads_next_token = false;
  int32_t guesses_per_pass = 1;  // Medusa: its heads; then there is a pass 0 only
  // Stands for a token that is to be guessed, in a network that guesses a block at once (below);
  // kNoToken: it does not. REQUIRES, if there is one: features and not reads_next_token.
  TokenId mask = kNoToken;
  bool is_block() const { return mask != kNoToken; }
  int32_t vocab = 0;        // columns of its logits
  int32_t max_context = 0;  // positions that it cannot go beyond; 0: it has no such limit
  // [vocab] the model's id of each of its own (EAGLE-3's d2t, as absolute ids), each once and below
  // the model's vocabulary. Empty: they are the same.
  std::vector<TokenId> target_ids;
  // Bit mask [ceil(vocab / 32)] of the tokens that it can guess. Empty: all of them.
  std::vector<uint32_t> guessable;
  // Whether it reads the model's embedding and head.
  bool shares_embedding = false;
  bool shares_head = false;
};

// One pass over the device's batch, which is planned: token ids, positions, slots and spans are
// those of the network's rows. The batch's logit rows are the ends of the chains, in any order of
// rows: logit row c belongs to chain c.
struct DraftPass {
  int32_t number = 0;
  int32_t n_rows = 0;
  // Chains that go on. Passes behind the first have one row for each; row c belongs to chain c of
  // the pass before, and reads the token that was drawn for it.
  int32_t n_chains = 0;
  // Pass 0: [n_rows, features * hidden] of the model's rows. Later: no data; a network that reads
  // features takes its own hidden state at the end of the chain, which it has kept.
  kernels::Tensor features;
  // [guesses + 1] of a pass over blocks: the batch's logit rows [guess_rows[g], guess_rows[g + 1])
  // are those of guess g, of the first so many chains. Empty for other passes.
  std::span<const int32_t> guess_rows;
  const KvStorage* cache = nullptr;
  int32_t first_kv_layer = 0;  // kv_layers[i] is layer first_kv_layer + i of the cache
};

// The logits of the last pass's chains [first_chain, first_chain + n_chains), for its guesses
// [first_guess, first_guess + n_guesses) < guesses_per_pass.
struct DraftLogits {
  static constexpr int32_t kMaxRows = 64;  // a tile of every kernel
  int32_t first_chain = 0;
  int32_t n_chains = 0;
  int32_t first_guess = 0;
  int32_t n_guesses = 1;
  kernels::Tensor out;  // [n_guesses * n_chains, vocab] F32, guess by guess; at most kMaxRows
};

class DraftNetwork {
 public:
  virtual ~DraftNetwork() = default;

  // Enqueues a pass: writes keys and values, and keeps what Logits and the next pass need. Takes no
  // memory. In pass 0 n_chains may be 0: then only keys and values are wanted.
  virtual void Forward(kernels::Ops& ops, const DraftPass& pass) = 0;

  // Enqueues logits of the last pass.
  virtual void Logits(kernels::Ops& ops, const DraftLogits& logits) = 0;
};

// The files of a drafter, read and checked against the model that it is for. Its weights are not
// loaded yet: the memory is planned first.
class DraftSource {
 public:
  virtual ~DraftSource() = default;

  virtual const DraftTraits& traits() const = 0;
  // Bytes of its weights once packed for `device`; nullptr: the host's.
  virtual int64_t WeightBytes(const kernels::Device* device) const = 0;
  // Bytes that its buffers take for steps of `max_batch_tokens` rows.
  virtual int64_t WorkspaceBytes(int32_t max_batch_tokens, kernels::DType activations) const = 0;

  // Loads the weights. `spec` and `weights` are the model's, whose embedding and head the network
  // may share, as its traits say; they outlive it. Where ranks share the model, `weights` has whole
  // matrices, of which only those are read. The source may go away afterwards.
  virtual absl::StatusOr<std::unique_ptr<DraftNetwork>> Load(kernels::Device& device,
                                                             const ModelSpec& spec,
                                                             const ModelWeights& weights,
                                                             int32_t max_batch_tokens) = 0;
};

// Opens a drafter for the model that `checkpoint` holds (which it is a part of, for MTP). An error
// names the drafter's file, what is wrong with it, and what would fit.
using OpenDraft = std::function<absl::StatusOr<std::unique_ptr<DraftSource>>(
    const Checkpoint& checkpoint, const ModelDescription& model)>;

}  // namespace heddle::engine
