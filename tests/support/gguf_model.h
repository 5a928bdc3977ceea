// Models of tests/golden/gguf_models.json and pooled_models.json: each as a Hugging Face folder and
// as the GGUF file that llama.cpp's converter makes of it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tests/support/goldens.h"

namespace heddle::test {

struct GgufModel {
  Golden folder;                          // without prompt and logits
  std::map<std::string, Golden> modules;  // tensors of folders in it, "<folder>/<name>" in `file`
  // architecture, metadata [[key, value]], file [[name, operation, [folder's tensors]]]
  std::shared_ptr<const nlohmann::json> file;
};

std::vector<std::string> GgufModelNames();
// Aborts if there is no such model.
GgufModel LoadGgufModel(const std::string& name);
// A golden with the names and keys of its file (tests/golden/make_arwkv_goldens.py).
GgufModel LoadGgufGolden(const std::string& name);

// Everything in F32. Returns `path`.
std::filesystem::path WriteGguf(const GgufModel& model, const std::filesystem::path& path);

}  // namespace heddle::test
