// The output of a model that writes no text: an embedding or scores of classes, made from the
// hidden states of a text that its folder says. Plain data, without threads of its own;
// PooledHead (pooled_head.h) computes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/step.h"

namespace heddle::engine {

enum class HeadActivation : uint8_t { kNone, kTanh, kGelu, kGeluTanh, kRelu, kSilu, kSigmoid };

// A layer between the pooled state and the output: y = activation(W x + b), or, with `is_norm`, a
// LayerNorm.
struct HeadLayer {
  int32_t in = 0;
  int32_t out = 0;     // of a norm: in
  std::string weight;  // name of a tensor, [out, in]; of a norm [in]
  std::string bias;    // [out]; empty: none
  // The folder of the tensors within the model's: that of a module of sentence-transformers. Empty:
  // they are the checkpoint's own.
  std::string folder;
  bool is_norm = false;
  float norm_eps = 1e-5f;
  HeadActivation activation = HeadActivation::kNone;
};

// How logits of classes become scores.
enum class ScoreRule : uint8_t { kRaw, kSigmoid, kSoftmax };

struct PooledOutput {
  std::optional<Pooling> pooling;  // absent: the folder does not say
  std::vector<HeadLayer> layers;
  bool normalize = true;            // an embedding gets length 1
  std::vector<std::string> labels;  // of classes; empty: the output is an embedding
  ScoreRule rule = ScoreRule::kRaw;
  // The first of several classes says how well two texts fit (Qwen3-Reranker's "yes").
  bool first_class_ranks = false;
  // Texts that are put before others, by the name of their use, and the one that is used where a
  // client names none.
  std::vector<std::pair<std::string, std::string>> prompts;
  std::string default_prompt;
  int32_t max_tokens = 0;  // of a text; 0: as many as the model takes

  bool is_classifier() const { return !labels.empty(); }
};

}  // namespace heddle::engine
