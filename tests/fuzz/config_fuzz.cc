// Any text as config.json, and the part after a line of "---" as generation_config.json: describe
// the model, its names and its frequencies.
#include <cstdint>
#include <string_view>

#include "engine/family/model_description.h"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"

namespace {
volatile size_t sink;  // keeps results alive
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kSeparator = "\n---\n";
  size_t cut = text.find(kSeparator);
  auto config = heddle::engine::ParseJson(text.substr(0, cut), "config.json");
  if (!config.ok()) return 0;
  nlohmann::json generation = nlohmann::json::object();
  if (cut != std::string_view::npos) {
    auto parsed = heddle::engine::ParseJson(text.substr(cut + kSeparator.size()), "generation");
    if (!parsed.ok()) return 0;
    generation = *std::move(parsed);
  }
  auto description = heddle::engine::DescribeConfig(*config, generation, "config.json");
  if (!description.ok()) return 0;
  const auto& rope = description->spec.layers[0].attention.rope;
  sink = description->names.Layer(0).q.size();
  if (rope.rotary_dim > 0) sink = heddle::engine::InverseFrequencies(rope).size();
  return 0;
}
