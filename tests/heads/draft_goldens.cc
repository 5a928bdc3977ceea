#include "tests/heads/draft_goldens.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/heads/open_heads.h"
#include "engine/model/weights.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/quantize.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/synthetic_weights.h"

namespace heddle::test {
namespace {

using nlohmann::json;

constexpr int32_t kMaxRows = 64;

SyntheticTensor ToTensor(const json& entry) {
  SyntheticTensor tensor{entry.at(0), entry.at(1), entry.at(2), entry.at(3)};
  if (entry.size() > 4) {
    tensor.type = entry.at(4);
    tensor.bits = entry.at(5);
    tensor.values = entry.at(6).get<std::vector<int64_t>>();
  }
  return tensor;
}

template <typename T>
T Valid(absl::StatusOr<T> result) {
  HEDDLE_CHECK(result.ok(), result.status().ToString());
  return *std::move(result);
}

void Check(const absl::Status& status) { HEDDLE_CHECK(status.ok(), status.ToString()); }

// llama.cpp's name of a tensor; `is_block`: of a DFlash network.
std::string GgufName(std::string name, bool is_block) {
  static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {"embed_tokens.", "token_embd."},
      {"lm_head.", "output."},
      {"midlayer.", "blk.0."},
      {"layers.", "blk."},
      {"self_attn.q_norm.", "attn_q_norm."},
      {"self_attn.k_norm.", "attn_k_norm."},
      {"self_attn.q_proj.", "attn_q."},
      {"self_attn.k_proj.", "attn_k."},
      {"self_attn.v_proj.", "attn_v."},
      {"self_attn.o_proj.", "attn_output."},
      {"post_attention_layernorm.", "ffn_norm."},
      {"input_layernorm.", "attn_norm."},
      {"hidden_norm.", "attn_norm_2."},
      {"mlp.gate_proj.", "ffn_gate."},
      {"mlp.up_proj.", "ffn_up."},
      {"mlp.down_proj.", "ffn_down."},
  };
  if (name == "norm.weight") return "output_norm.weight";
  if (is_block && name == "hidden_norm.weight") return "enc.output_norm.weight";
  for (const auto& [from, to] : kReplacements) {
    if (const size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  return name;
}

// Within each head, row j of the first half and row j of the second become neighbours.
std::vector<float> PermuteHeads(const std::vector<float>& values, int64_t n_heads, int64_t rows,
                                int64_t cols) {
  const int64_t head_dim = rows / n_heads;
  std::vector<float> permuted;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t in_head = row % head_dim;
    const int64_t from = row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
    permuted.insert(permuted.end(), values.begin() + from * cols,
                    values.begin() + (from + 1) * cols);
  }
  return permuted;
}

// The keys that both kinds of files have, under the name of their architecture.
void AddLayerKeys(const json& config, const std::string& kind, uint32_t layers,
                  GgufWriter* writer) {
  const auto number = [&](const char* key) { return config.at(key).get<uint32_t>(); };
  writer->String("general.architecture", kind)
      .U32(kind + ".context_length", number("max_position_embeddings"))
      .U32(kind + ".embedding_length", number("hidden_size"))
      .U32(kind + ".block_count", layers)
      .U32(kind + ".feed_forward_length", number("intermediate_size"))
      .U32(kind + ".attention.head_count", number("num_attention_heads"))
      .U32(kind + ".attention.head_count_kv", number("num_key_value_heads"))
      .F32(kind + ".attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>())
      .F32(kind + ".rope.freq_base", config.at("rope_theta").get<float>())
      .U32(kind + ".vocab_size", number("vocab_size"));
}

void AddEagleKeys(const DraftGolden& golden, GgufWriter* writer) {
  const json& config = *golden.files.config;
  const auto n_layers = golden.model.config->at("num_hidden_layers").get<int32_t>();
  const int32_t layers[] = {2, n_layers / 2, n_layers - 3};
  AddLayerKeys(config, "eagle3", 1, writer);
  writer->U32("eagle3.target_hidden_size", config.at("target_hidden_size").get<uint32_t>())
      .Ints("eagle3.target_layers", layers);
}

void AddDflashKeys(const json& config, GgufWriter* writer) {
  const auto number = [&](const char* key) { return config.at(key).get<uint32_t>(); };
  AddLayerKeys(config, "dflash", number("num_hidden_layers"), writer);
  std::vector<int32_t> inputs;
  for (const json& output : config.at("dflash_config").at("target_layer_ids")) {
    inputs.push_back(output.get<int32_t>() + 1);
  }
  std::vector<int32_t> slides;
  for (const json& type : config.at("layer_types")) {
    slides.push_back(type == "sliding_attention" ? 1 : 0);
  }
  writer->U32("dflash.attention.key_length", number("head_dim"))
      .U32("dflash.attention.value_length", number("head_dim"))
      .U32("dflash.block_size", number("block_size"))
      .U32("tokenizer.ggml.mask_token_id",
           config.at("dflash_config").at("mask_token_id").get<uint32_t>())
      .Ints("dflash.target_layers", inputs);
  if (const json& more = config.at("dflash_config"); more.contains("output_multiplier")) {
    writer->F32("dflash.logit_scale", more.at("output_multiplier").get<float>())
        .F32("dflash.final_logit_softcapping", more.at("final_logit_softcapping").get<float>());
  }
  if (config.value("use_sliding_window", false)) {
    writer->U32("dflash.attention.sliding_window", number("sliding_window"))
        .Ints("dflash.attention.sliding_window_pattern", slides);
  }
}

}  // namespace

std::vector<std::string> DraftGoldenNames() {
  std::vector<std::string> names;
  for (const json& entry : LoadGoldenJson("draft_networks.json")) names.push_back(entry.at("name"));
  return names;
}

DraftGolden LoadDraftGolden(const std::string& name) {
  for (const json& entry : LoadGoldenJson("draft_networks.json")) {
    if (entry.at("name") != name) continue;
    DraftGolden golden;
    golden.name = name;
    golden.model = LoadGolden(entry.at("target").get<std::string>());
    golden.tokens = entry.at("tokens").get<std::vector<int32_t>>();
    golden.prompt = entry.at("prompt").get<std::vector<engine::TokenId>>();
    golden.chain = entry.at("chain").get<std::vector<engine::TokenId>>();
    golden.feature_scale = entry.at("feature_scale");
    golden.passes = entry.at("passes").get<std::vector<std::vector<float>>>();
    Golden& files = entry.at("in_target").get<bool>() ? golden.model : golden.files;
    json config = files.config == nullptr ? json::object() : *files.config;
    config.update(entry.at("config"));
    files.config = std::make_shared<const json>(std::move(config));
    golden.files.dtype = "F32";
    for (const json& tensor : entry.at("tensors")) files.tensors.push_back(ToTensor(tensor));
    return golden;
  }
  HEDDLE_CHECK(false, "there is no golden of that name");
}

void WriteNetworkGguf(const DraftGolden& golden, const std::filesystem::path& path) {
  constexpr uint32_t kF32 = 0;  // of ggml's types
  constexpr uint32_t kI64 = 27;
  GgufWriter writer;
  const bool is_block = golden.name.starts_with("dflash");
  if (is_block) {
    AddDflashKeys(*golden.files.config, &writer);
  } else {
    AddEagleKeys(golden, &writer);
  }
  for (const SyntheticTensor& tensor : golden.files.tensors) {
    const std::string name = GgufName(tensor.name, is_block);
    if (name == "d2t") {
      std::vector<int64_t> ids = tensor.values;
      for (size_t i = 0; i < ids.size(); ++i) ids[i] += static_cast<int64_t>(i);
      writer.Tensor(name, kI64, tensor.shape, std::as_bytes(std::span(ids)));
      continue;
    }
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    std::vector<float> values = SyntheticValues(tensor.name, count, tensor.scale, tensor.offset);
    const bool is_q = name == "blk.0.attn_q.weight";
    if (!is_block && (is_q || name == "blk.0.attn_k.weight")) {  // Llama's rotation is by pairs
      const auto heads =
          golden.files.config->at(is_q ? "num_attention_heads" : "num_key_value_heads")
              .get<int64_t>();
      values = PermuteHeads(values, heads, tensor.shape[0], tensor.shape[1]);
    }
    writer.Tensor(name, kF32, tensor.shape, std::as_bytes(std::span(values)));
  }
  WriteFile(path, writer.Bytes());
}

absl::StatusOr<std::unique_ptr<engine::DraftSource>> OpenNetwork(
    const DraftGolden& golden, const std::filesystem::path& files, const engine::Checkpoint& target,
    const engine::ModelDescription& model) {
  if (golden.is_mtp()) return engine::OpenMtp(target, model);
  if (golden.is_medusa()) return engine::OpenMedusa(files, model);
  return engine::OpenEagle(files, target, model);
}

NetworkRun::NetworkRun(const DraftGolden& golden, std::unique_ptr<kernels::Device> device,
                       const std::filesystem::path& folder, bool as_gguf)
    : golden_(golden), device_(std::move(device)) {
  const auto model_path =
      as_gguf && golden.is_mtp()
          ? WriteSyntheticGguf(golden.model, kernels::DType::kF32, folder / "model.gguf")
          : WriteSyntheticModel(golden.model, folder / "model");
  const auto files = folder / (as_gguf ? "network.gguf" : "network");
  if (golden.is_mtp()) {
    // Its layer is among the model's.
  } else if (as_gguf) {
    WriteNetworkGguf(golden, files);
  } else {
    WriteSyntheticModel(golden.files, files);
  }
  target_ = std::make_unique<engine::Checkpoint>(Valid(engine::OpenCheckpoint(model_path)));
  model_ = Valid(engine::Describe(*target_));
  Check(engine::ValidateTensors(*target_, model_));
  weights_ = Valid(engine::LoadWeights(*device_, *target_, model_));
  source_ = Valid(OpenNetwork(golden, files, *target_, model_));
  network_ = Valid(source_->Load(*device_, model_.spec, weights_, kMaxRows));
  const std::vector<engine::KvLayer>& layers = traits().kv_layers;
  // Layers of the model, as it were, come first.
  std::vector<engine::KvLayer> all(2, {.shape = {.n_kv_heads = 1, .head_dim = 8}});
  all.insert(all.end(), layers.begin(), layers.end());
  cache_ = std::make_unique<engine::KvStorage>(
      Valid(engine::KvStorage::Create(*device_, engine::OneKvGroup(all), kernels::DType::kF32,
                                      /*num_pages=*/4 * kPagesPerSequence, kPageTokens)));
}

std::vector<std::vector<std::vector<float>>> NetworkRun::Run(int32_t n_seqs, int32_t first_rows) {
  const auto rows = static_cast<int32_t>(golden_.tokens.size());
  tokens_.assign(static_cast<size_t>(n_seqs), golden_.tokens);
  const int64_t width = static_cast<int64_t>(traits().features.size()) * model_.spec.hidden;
  const kernels::DType dtype = device_->activation_dtype();
  features_ = Valid(device_->Allocate(n_seqs * rows * kernels::RowBytes(dtype, width)));
  logits_ = Valid(device_->Allocate(traits().guesses_per_pass * n_seqs * int64_t{traits().vocab} *
                                    int64_t{sizeof(float)}));
  std::vector<std::vector<std::vector<float>>> logits;
  if (first_rows > 0) RunBatch(0, 0, first_rows, /*is_last=*/false, &logits);
  if (traits().is_block()) {
    RunBatch(0, first_rows, rows, /*is_last=*/false, &logits);
    for (auto& tokens : tokens_) {
      const int32_t last = tokens.back();
      tokens.push_back(last);
      tokens.resize(tokens.size() + static_cast<size_t>(traits().guesses_per_pass), traits().mask);
    }
    RunBatch(1, rows, rows + 1 + traits().guesses_per_pass, /*is_last=*/true, &logits);
    return logits;
  }
  RunBatch(0, first_rows, rows, /*is_last=*/true, &logits);
  const auto passes = static_cast<int32_t>(golden_.passes.size());
  for (int32_t pass = 1; pass < passes && !golden_.is_medusa(); ++pass) {
    const std::vector<float>& before = golden_.passes[static_cast<size_t>(pass) - 1];
    const auto best =
        static_cast<size_t>(std::max_element(before.begin(), before.end()) - before.begin());
    const auto& ids = traits().target_ids;
    for (auto& tokens : tokens_) {
      tokens.push_back(ids.empty() ? static_cast<int32_t>(best) : ids[best]);
    }
    RunBatch(pass, rows + pass - 1, rows + pass, /*is_last=*/true, &logits);
  }
  return logits;
}

void NetworkRun::RunBatch(int32_t pass, int32_t begin, int32_t end, bool is_last,
                          std::vector<std::vector<std::vector<float>>>* logits) {
  const auto n_seqs = static_cast<int32_t>(tokens_.size());
  const int32_t n = end - begin;
  const bool is_block = traits().is_block() && pass == 1;
  std::vector<int32_t> token_ids, positions, q_begin = {0}, span_begin = {0}, span_page,
                                             span_tokens, context_len, logit_rows;
  std::vector<int64_t> kv_slot;
  for (int32_t seq = 0; seq < n_seqs; ++seq) {
    const int32_t first_page = seq * kPagesPerSequence;
    for (int32_t at = begin; at < end; ++at) {
      token_ids.push_back(tokens_[static_cast<size_t>(seq)][static_cast<size_t>(at)]);
      positions.push_back(at);
      kv_slot.push_back(int64_t{first_page} * kPageTokens + at);
    }
    for (int32_t at = 0; at < end; at += kPageTokens) {
      span_page.push_back(first_page + at / kPageTokens);
      span_tokens.push_back(std::min(kPageTokens, end - at));
    }
    q_begin.push_back(q_begin.back() + n);
    span_begin.push_back(static_cast<int32_t>(span_page.size()));
    context_len.push_back(end);
    if (is_last && !is_block) logit_rows.push_back(q_begin.back() - 1);
  }
  std::vector<uint64_t> masks;
  std::vector<int32_t> guess_rows;
  if (is_block) {
    masks.assign(token_ids.size(), (uint64_t{1} << n) - 1);
    for (int32_t guess = 0; guess + 1 < n; ++guess) {
      guess_rows.push_back(static_cast<int32_t>(logit_rows.size()));
      for (int32_t seq = 0; seq < n_seqs; ++seq) logit_rows.push_back(seq * n + 1 + guess);
    }
    guess_rows.push_back(static_cast<int32_t>(logit_rows.size()));
  }
  if (pass == 0) {
    const int64_t width = static_cast<int64_t>(traits().features.size()) * model_.spec.hidden;
    const std::vector<float> all = SyntheticValues(
        golden_.name + ".features", static_cast<int64_t>(golden_.tokens.size()) * width,
        golden_.feature_scale, 0.0f);
    std::vector<float> rows;
    for (int32_t seq = 0; seq < n_seqs; ++seq) {
      rows.insert(rows.end(), all.begin() + begin * width, all.begin() + end * width);
    }
    const std::vector<std::byte> bytes = Encode(rows, width, device_->activation_dtype());
    Check(device_->Upload(features_->data(), bytes.data(), static_cast<int64_t>(bytes.size())));
  }
  const int64_t width = static_cast<int64_t>(traits().features.size()) * model_.spec.hidden;
  const engine::DraftPass draft_pass = {
      .number = pass,
      .n_rows = n * n_seqs,
      .n_chains = is_last ? n_seqs : 0,
      .features = pass > 0 ? kernels::Tensor{}
                           : kernels::Tensor{features_->data(), n * n_seqs, width, width},
      .guess_rows = guess_rows,
      .cache = cache_.get(),
      .first_kv_layer = 2};
  Check(device_->Plan({.token_ids = token_ids,
                       .positions = positions,
                       .kv_slot = kv_slot,
                       .q_begin = q_begin,
                       .span_begin = span_begin,
                       .span_page = span_page,
                       .span_tokens = span_tokens,
                       .context_len = context_len,
                       .logit_rows = logit_rows,
                       .tree_mask = masks}));
  Check(device_->Run([&](kernels::Ops& ops) { network_->Forward(ops, draft_pass); }));
  if (!is_last) return;
  // The first guess alone, then all others at once.
  for (int32_t first = 0; first < traits().guesses_per_pass;) {
    const int32_t n_guesses = first == 0 ? 1 : traits().guesses_per_pass - first;
    const int32_t rows = n_guesses * n_seqs;
    const engine::DraftLogits args{.n_chains = n_seqs,
                                   .first_guess = first,
                                   .n_guesses = n_guesses,
                                   .out = {logits_->data(), rows, traits().vocab, traits().vocab}};
    Check(device_->Run([&](kernels::Ops& ops) { network_->Logits(ops, args); }));
    for (int32_t guess = 0; guess < n_guesses; ++guess) {
      ReadLogits(guess * n_seqs, &logits->emplace_back());
    }
    first += n_guesses;
  }
}

void NetworkRun::ReadLogits(int32_t first_row, std::vector<std::vector<float>>* rows) {
  const auto vocab = static_cast<size_t>(traits().vocab);
  std::vector<float> values(tokens_.size() * vocab);
  const float* const from =
      static_cast<const float*>(logits_->data()) + static_cast<size_t>(first_row) * vocab;
  Check(
      device_->Download(values.data(), from, static_cast<int64_t>(values.size() * sizeof(float))));
  for (size_t seq = 0; seq < tokens_.size(); ++seq) {
    rows->emplace_back(values.begin() + static_cast<std::ptrdiff_t>(seq * vocab),
                       values.begin() + static_cast<std::ptrdiff_t>((seq + 1) * vocab));
  }
}

}  // namespace heddle::test
