// A draft network beside a real model, and what it guesses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "engine/model/load.h"
#include "tests/heads/draft_goldens.h"

namespace heddle::test {

// Pages of 8 positions, steps of 64 rows, F32 keys; otherwise as `options` say.
std::unique_ptr<engine::LocalExecutor> LoadBeside(const DraftGolden& golden,
                                                  const std::filesystem::path& folder,
                                                  engine::LoadOptions options);

// The token that is drawn behind the prompt, which is read in two steps, the first of `first_rows`
// rows, and the guesses behind that.
std::vector<engine::TokenId> ChainOf(engine::LocalExecutor& executor,
                                     const std::vector<engine::TokenId>& prompt, int32_t first_rows,
                                     int32_t num_guesses);

}  // namespace heddle::test
