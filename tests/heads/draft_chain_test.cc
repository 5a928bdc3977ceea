// Draft networks beside a real model: they read the layers that their configuration names, at the
// positions and with the tokens that their authors' code gives them. The guesses are those that
// transformers and that code make (tests/golden/make_draft_goldens.py).
#include <string>

#include "catch2/catch.hpp"
#include "tests/heads/draft_chain.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

TEST_CASE("A network beside its model guesses what its authors' code does", "[golden]") {
  const std::string name = GENERATE(from_range(test::DraftGoldenNames()));
  INFO(name);
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  test::TempDir dir;
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  auto executor = test::LoadBeside(golden, dir.path(), options);
  const auto num_guesses = static_cast<int32_t>(golden.chain.size()) - 1;
  CHECK(test::ChainOf(*executor, golden.prompt, /*first_rows=*/0, num_guesses) == golden.chain);
  CHECK(test::ChainOf(*executor, golden.prompt, /*first_rows=*/5, num_guesses) == golden.chain);
}

}  // namespace
}  // namespace heddle
