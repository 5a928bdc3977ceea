// Goldens of draft networks (tests/golden/draft_networks.json), written to disk as users have them,
// and run by hand: one batch after the other, with made-up hidden states of the model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/draft_network.h"
#include "kernels/device.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"

namespace heddle::test {

struct DraftGolden {
  std::string name;
  Golden model;  // the model that the network is for; with MTP its layer is among the tensors
  Golden files;  // the network's own files; without tensors for MTP
  std::vector<int32_t> tokens;  // that the rows of the first pass read
  float feature_scale = 1.0f;
  // Behind this prompt of the model: the token that it draws, and the network's guesses.
  std::vector<engine::TokenId> prompt, chain;
  std::vector<std::vector<float>> passes;  // logits behind the last row; for Medusa, of each head

  bool is_mtp() const { return files.tensors.empty(); }
  bool is_medusa() const { return name.starts_with("medusa"); }
};

std::vector<std::string> DraftGoldenNames();
DraftGolden LoadDraftGolden(const std::string& name);

// The files of an EAGLE-3 network, whose layer is "midlayer" and which has a d2t, or of a DFlash
// network in its authors' form, as llama.cpp's converter would write them.
void WriteNetworkGguf(const DraftGolden& golden, const std::filesystem::path& path);

// Opens the network of these files in the manner of its kind.
absl::StatusOr<std::unique_ptr<engine::DraftSource>> OpenNetwork(
    const DraftGolden& golden, const std::filesystem::path& files, const engine::Checkpoint& target,
    const engine::ModelDescription& model);

// A network with what it runs on.
class NetworkRun {
 public:
  // Writes model and network to `folder` and loads both onto `device`. `as_gguf`: the network, for
  // MTP with the model, as llama.cpp's converter writes it.
  NetworkRun(const DraftGolden& golden, std::unique_ptr<kernels::Device> device,
             const std::filesystem::path& folder, bool as_gguf = false);

  // Runs all passes for `n_seqs` equal sequences, the rows of the first one in two batches, of
  // which the first has `first_rows` (0: one batch). Returns the logits of each sequence's last
  // row, [passes][n_seqs][vocab].
  std::vector<std::vector<std::vector<float>>> Run(int32_t n_seqs, int32_t first_rows);

  const engine::DraftTraits& traits() const { return source_->traits(); }

 private:
  static constexpr int32_t kPageTokens = 8;
  static constexpr int32_t kPagesPerSequence = 4;

  // Rows [begin, end) of every sequence's tokens.
  void RunBatch(int32_t pass, int32_t begin, int32_t end, bool is_last,
                std::vector<std::vector<std::vector<float>>>* logits);
  void ReadLogits(int32_t first_row, std::vector<std::vector<float>>* rows);

  const DraftGolden& golden_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<engine::Checkpoint> target_;
  engine::ModelDescription model_;
  engine::ModelWeights weights_;
  std::unique_ptr<engine::DraftSource> source_;
  std::unique_ptr<engine::DraftNetwork> network_;
  std::unique_ptr<engine::KvStorage> cache_;
  std::unique_ptr<kernels::Buffer> features_;  // [n_seqs * rows, features * hidden]
  std::unique_ptr<kernels::Buffer> logits_;    // [guesses, n_seqs, vocab]
  std::vector<std::vector<int32_t>> tokens_;   // of each sequence
};

}  // namespace heddle::test
