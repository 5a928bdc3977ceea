#include "engine/family/module_names.h"

#include <algorithm>

#include "engine/family/family_names.h"
#include "engine/family/family_table.h"

namespace heddle::engine {
namespace {

const Family* FamilyOf(const ModelDescription& model) {
  for (const Family& family : FamilyTable()) {
    if (family.name == model.spec.family) return &family;
  }
  return nullptr;
}

}  // namespace

bool HasGgufNames(const ModelDescription& model) {
  return model.names.embed.starts_with("token_embd");
}

NameMap HuggingFaceNames(const ModelDescription& model) {
  if (!HasGgufNames(model)) return model.names;
  const Family* family = FamilyOf(model);
  return family == nullptr || family->names == nullptr ? NameMap() : *family->names;
}

NameMap GgufFileNames(const ModelDescription& model) {
  return HasGgufNames(model) ? model.names : GgufNames();
}

bool GgufPermutesQk(const ModelDescription& model) {
  const Family* family = FamilyOf(model);
  return family != nullptr && family->gguf_rope_layout == RopeLayout::kInterleaved &&
         family->rope_layout == RopeLayout::kHalf;
}

bool IsGgufArchitecture(const ModelDescription& model, std::string_view architecture) {
  const Family* family = FamilyOf(model);
  return family != nullptr &&
         std::find(family->gguf_architectures.begin(), family->gguf_architectures.end(),
                   architecture) != family->gguf_architectures.end();
}

}  // namespace heddle::engine
