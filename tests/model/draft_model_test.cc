// Draft models are taken or refused by their vocabulary.
#include "engine/model/draft_model.h"

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "tests/support/goldens.h"
#include "tests/support/paths.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<DraftSource>> OpenForDemo(const fs::path& path) {
  const auto target = OpenCheckpoint(test::SourceDir() / "share/demo-model");
  REQUIRE(target.ok());
  const auto model = Describe(*target);
  REQUIRE(model.ok());
  return OpenDraftModel(path, *target, *model);
}

bool RefusesWith(const fs::path& path, std::string_view words) {
  const auto opened = OpenForDemo(path);
  INFO(opened.status().ToString());
  if (opened.ok()) UNSCOPED_INFO((*opened)->traits().text);
  REQUIRE_FALSE(opened.ok());
  return opened.status().message().find(std::string(words)) != absl::string_view::npos;
}

TEST_CASE("A smaller model of the same tokens is a draft model", "[golden]") {
  const auto opened = OpenForDemo(test::SourceDir() / "tests/demo_model/draft");
  INFO(opened.status().ToString());
  REQUIRE(opened.ok());
  const DraftTraits& traits = (*opened)->traits();
  CHECK(traits.kind == "draft");
  CHECK(traits.vocab == 1280);
  CHECK(traits.features.empty());
  REQUIRE(traits.kv_layers.size() == 2);  // tests/demo_model/draft/config.json
  CHECK(traits.kv_layers[0].shape.n_kv_heads == 1);
  CHECK(traits.kv_layers[0].shape.head_dim == 32);
  CHECK((*opened)->WeightBytes(nullptr) > 300'000);
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("A draft model with other token ids drafts with the tokens in common", "[golden]") {
  test::TempDir folder;
  fs::copy(test::SourceDir() / "tests/demo_model/draft", folder.path(),
           fs::copy_options::recursive);
  const fs::path tokenizer = folder.path() / "tokenizer.json";
  std::string text = ReadAll(tokenizer);
  // Two tokens change places.
  for (const auto& [from, to] :
       {std::pair{"\"Tell\": 603", "\"Tell\": 604"}, std::pair{"\"ug\": 604", "\"ug\": 603"}}) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string_view(from).size(), to);
  }
  std::ofstream(tokenizer) << text;
  const auto opened = OpenForDemo(folder.path());
  INFO(opened.status().ToString());
  REQUIRE(opened.ok());
  const DraftTraits& traits = (*opened)->traits();
  INFO(traits.text);
  CHECK(traits.text.find(", by 1280 of its 1280 tokens") != std::string::npos);
  CHECK(traits.vocab == 1280);
  CHECK(traits.guessable == std::vector<uint32_t>(40, ~uint32_t{0}));
}

TEST_CASE("A draft model of another tokenizer has a row for each of the model's tokens",
          "[golden]") {
  const auto opened = OpenForDemo(test::SharedDataOrSkip("stories260K"));
  INFO(opened.status().ToString());
  REQUIRE(opened.ok());
  const DraftTraits& traits = (*opened)->traits();
  CHECK(traits.vocab == 1280);  // its own has 512
  CHECK(traits.guessable.size() == 40);
  CHECK(traits.target_ids.empty());
  // 768 rows of 64 numbers more than its files have.
  const auto checkpoint = OpenCheckpoint(test::SharedDataOrSkip("stories260K"));
  REQUIRE(checkpoint.ok());
  CHECK((*opened)->WeightBytes(nullptr) > checkpoint->total_bytes());
}

TEST_CASE("A draft model with nothing in common is refused", "[golden]") {
  test::TempDir folder;
  fs::copy(test::SourceDir() / "tests/demo_model/draft", folder.path(),
           fs::copy_options::recursive);
  fs::remove(folder.path() / "tokenizer_config.json");
  fs::remove(folder.path() / "generation_config.json");
  std::string pieces = R"(["<unk>", 0])";
  for (int i = 1; i < 1280; ++i) pieces += ", [\"qx" + std::to_string(i) + "\", -1]";
  std::ofstream(folder.path() / "tokenizer.json")
      << R"({"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": [)" << pieces
      << "]}}";
  CHECK(RefusesWith(folder.path(), "tokens in common with it, of 1280 and 1280"));
}

TEST_CASE("A draft model without a tokenizer, or no model at all, is refused", "[golden]") {
  test::TempDir folder;
  const test::Golden golden = test::LoadGolden("llama");
  CHECK(RefusesWith(test::WriteSyntheticModel(golden, folder.path()), "tokenizer"));
  CHECK(RefusesWith(folder.path() / "nothing", "nothing"));
}

// The demo model with its draft model in so much memory, as `auto` finds it.
absl::StatusOr<ModelInfo> DescribeBeside(int64_t available_bytes, bool yields) {
  LoadOptions options;
  options.drafter_yields = yields;
  options.memory = HostMemory{.total_bytes = available_bytes, .available_bytes = available_bytes};
  options.capacity.max_context = 256;
  options.capacity.kv_bytes = int64_t{1} << 20;
  options.open_draft = [](const Checkpoint& target, const ModelDescription& model) {
    return OpenDraftModel(test::SourceDir() / "tests/demo_model/draft", target, model);
  };
  return DescribeModel(test::SourceDir() / "share/demo-model", options);
}

TEST_CASE("A drafter that lies beside the model leaves its place where memory is short",
          "[golden]") {
  constexpr int64_t kEnough = int64_t{1} << 30;
  const auto with = DescribeBeside(kEnough, true);
  REQUIRE(with.ok());
  CHECK(with->drafter_left_out.empty());
  CHECK(with->capacity.limits.max_ahead_tokens > 0);
  // Everything but a few bytes of the drafter.
  const int64_t needed =
      with->capacity.weight_bytes + with->capacity.workspace_bytes + with->capacity.kv_bytes;
  const int64_t too_little = needed - 100'000;
  const auto without = DescribeBeside(too_little, true);
  INFO(without.status().ToString());
  REQUIRE(without.ok());
  CHECK(without->capacity.limits.max_ahead_tokens == 0);
  CHECK(without->drafter_left_out.find("with it, ") != std::string::npos);
  // One that is named is a demand.
  CHECK(absl::IsResourceExhausted(DescribeBeside(too_little, false).status()));
}

}  // namespace
}  // namespace heddle::engine
