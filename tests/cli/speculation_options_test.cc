#include "server/cli/speculation_options.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::server {
namespace {

SpeculationOptions Read(const std::string& json) {
  config::EngineConfig config;
  config.speculative_config = json;
  const auto options = ToSpeculationOptions(config);
  INFO(json << " -> " << options.status());
  REQUIRE(options.ok());
  return *options;
}

// Whether the message has the option and `word` in it.
bool Refuses(const std::string& json, const std::string& word) {
  config::EngineConfig config;
  config.speculative_config = json;
  const auto options = ToSpeculationOptions(config);
  INFO(json << " -> " << options.status());
  REQUIRE_FALSE(options.ok());
  const std::string message(options.status().message());
  return message.starts_with("--speculative-config: ") && message.find(word) != std::string::npos;
}

TEST_CASE("Without options auto drafts", "[unit]") {
  const auto silent = ToSpeculationOptions(config::EngineConfig{});
  REQUIRE(silent.ok());
  CHECK(silent->on);
  CHECK(silent->drafters.ngram);
  CHECK(silent->drafters.suffix);
  CHECK(silent->network.kind == NetworkOptions::Kind::kAny);
  config::EngineConfig named;
  named.speculate = {"off"};
  CHECK_FALSE(ToSpeculationOptions(named)->on);
}

TEST_CASE("Drafters are named alone, together, or by auto", "[unit]") {
  config::EngineConfig config;
  config.speculate = {"ngram"};
  CHECK(ToSpeculationOptions(config)->on);
  CHECK(ToSpeculationOptions(config)->drafters.ngram);
  CHECK_FALSE(ToSpeculationOptions(config)->drafters.suffix);
  CHECK(ToSpeculationOptions(config)->max_tokens == 16);
  for (const auto& names : {std::vector<std::string>{"auto"}, {"suffix", "ngram"}}) {
    config.speculate = names;
    config.speculate_max = 5;
    const auto both = ToSpeculationOptions(config);
    CHECK(both->drafters.ngram);
    CHECK(both->drafters.suffix);
    CHECK(both->max_tokens == 5);
  }
}

TEST_CASE("vLLM's JSON chooses the drafter and its limits", "[unit]") {
  const SpeculationOptions ngram =
      Read(R"({"method":"ngram","num_speculative_tokens":5,"prompt_lookup_min":3,
               "prompt_lookup_max":4})");
  CHECK(ngram.on);
  CHECK(ngram.drafters.ngram);
  CHECK_FALSE(ngram.drafters.suffix);
  CHECK(ngram.max_tokens == 5);
  CHECK(ngram.drafters.ngram_options.min_match == 3);
  CHECK(ngram.drafters.ngram_options.max_match == 4);
  // One bound alone moves the other one's default.
  CHECK(Read(R"({"method":"ngram","prompt_lookup_min":9})").drafters.ngram_options.max_match == 9);
  CHECK(Read(R"({"method":"ngram","prompt_lookup_max":1})").drafters.ngram_options.min_match == 1);
  const SpeculationOptions suffix = Read(
      R"({"method":"suffix","suffix_decoding_max_tree_depth":24,
          "suffix_decoding_max_cached_requests":1000})");
  CHECK(suffix.drafters.suffix);
  CHECK(suffix.drafters.suffix_options.max_match == 24);
  CHECK(suffix.drafters.suffix_options.max_corpus_bytes == 8192 * 1000);
  CHECK(Read(R"({"method":"suffix","suffix_decoding_max_cached_requests":0})")
            .drafters.suffix_options.max_corpus_bytes == 0);
}

TEST_CASE("A drafter with weights is named by kind and path", "[unit]") {
  using Kind = NetworkOptions::Kind;
  config::EngineConfig config;
  config.speculate = {"ngram", "draft:models/small:v2"};
  const auto named = ToSpeculationOptions(config);
  CHECK(named->on);
  CHECK(named->drafters.ngram);
  CHECK(named->network.kind == Kind::kDraftModel);
  CHECK(named->network.path == "models/small:v2");
  std::string left_out;
  CHECK(*ToOpenDraft(config, &left_out) != nullptr);
  config.speculate = {"ngram"};
  CHECK(*ToOpenDraft(config, &left_out) == nullptr);
  const SpeculationOptions eagle =
      Read(R"({"method":"eagle3","model":"heads","num_speculative_tokens":3})");
  CHECK(eagle.network.kind == Kind::kEagle);
  CHECK(eagle.network.path == "heads");
  CHECK(eagle.max_tokens == 3);
  CHECK(Read(R"({"method":"draft_model","model":"m"})").network.kind == Kind::kDraftModel);
  CHECK(Read(R"({"method":"mtp"})").network.kind == Kind::kMtp);
  CHECK(Read(R"({"method":"medusa","model":"m"})").network.kind == Kind::kMedusa);
}

TEST_CASE("A drafter that merely lies beside the model is left out if it does not fit", "[unit]") {
  test::TempDir folder;
  const auto path = test::WriteSyntheticModel(test::LoadGolden("llama"), folder.path());
  const auto checkpoint = engine::OpenCheckpoint(path);
  REQUIRE(checkpoint.ok());
  const auto model = engine::Describe(*checkpoint);
  REQUIRE(model.ok());
  std::filesystem::create_directory(folder.path() / "medusa");
  std::ofstream(folder.path() / "medusa" / "config.json") << "{}";
  config::EngineConfig config;
  std::string left_out;
  config.speculate = {"auto"};
  const auto found = (*ToOpenDraft(config, &left_out))(*checkpoint, *model);
  REQUIRE(found.ok());
  CHECK(*found == nullptr);
  CHECK(left_out.find("medusa") != std::string::npos);
  // Named, it is an error.
  config.speculate = {"medusa:" + (folder.path() / "medusa").string()};
  left_out.clear();
  CHECK_FALSE((*ToOpenDraft(config, &left_out))(*checkpoint, *model).ok());
  CHECK(left_out.empty());
}

TEST_CASE("A server's log says what it drafts with, or why it does not", "[unit]") {
  config::EngineConfig config;
  config.speculate = {"auto"};
  const SpeculationOptions options = *ToSpeculationOptions(config);
  engine::ExecutorLimits limits;
  limits.max_draft_tokens = 64;
  SpeculationReport report = DescribeSpeculation(options, limits, "4 Medusa heads", "");
  CHECK(report.drafters == "predicted outputs, suffixes, n-grams, 4 Medusa heads");
  CHECK(report.without.empty());
  report = DescribeSpeculation(options, limits, "", "what lies there");
  CHECK(report.drafters == "predicted outputs, suffixes, n-grams");
  CHECK(report.without == "what lies there");
  limits.max_draft_tokens = 0;
  report = DescribeSpeculation(options, limits, "", "");
  CHECK(report.drafters.empty());
  CHECK(report.without == "the model's executor verifies no drafts");
  config.speculate = {"off"};
  report = DescribeSpeculation(*ToSpeculationOptions(config), limits, "", "");
  CHECK(report.drafters.empty());
  CHECK(report.without.empty());
}

TEST_CASE("Other methods and members of vLLM's JSON are refused by name", "[unit]") {
  CHECK(Refuses(R"({"method":"eagle3"})", "needs \"model\""));
  CHECK(Refuses(R"({"method":"dflash"})", "needs \"model\""));
  CHECK(Refuses(R"({"method":"dspark","model":"m"})", "dspark"));
  CHECK(Refuses(R"({"method":"draft_model","model":"m","draft_tensor_parallel_size":2})",
                "draft_tensor_parallel_size"));
  CHECK(Refuses(R"({"method":"ngram","model":"x"})", "model"));
  CHECK(Refuses(R"({"method":"suffix","suffix_decoding_min_token_prob":0.1})",
                "suffix_decoding_min_token_prob"));
  CHECK(Refuses(R"({"method":"ngram","speculation":1})", "speculation"));
  CHECK(Refuses(R"({"num_speculative_tokens":5})", "method"));
  CHECK(Refuses(R"({"method":7})", "method"));
  CHECK(Refuses(R"({"method":"ngram","num_speculative_tokens":65})", "num_speculative_tokens"));
  CHECK(Refuses(R"({"method":"ngram","num_speculative_tokens":0})", "num_speculative_tokens"));
  CHECK(Refuses(R"({"method":"ngram","prompt_lookup_min":5,"prompt_lookup_max":4})",
                "prompt_lookup_min"));
  CHECK(Refuses("[]", ""));
  CHECK(Refuses("{\"method\":", ""));
}

}  // namespace
}  // namespace heddle::server
