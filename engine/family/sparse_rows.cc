#include "engine/family/sparse_rows.h"

#include "engine/family/family_refine.h"
#include "engine/family/gguf_refine.h"
#include "engine/family/row_variants.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kDeepseekArchitectures[] = {"DeepseekV32ForCausalLM"};
constexpr std::string_view kDeepseekGguf[] = {"deepseek32"};
constexpr std::string_view kGlmArchitectures[] = {"GlmMoeDsaForCausalLM"};
constexpr std::string_view kGlmGguf[] = {"glm-dsa"};

Family DeepseekV32(const FamilyRows& rows) {
  Family deepseek =
      rows.Variant("deepseek_v3", "deepseek_v32", kDeepseekArchitectures, kDeepseekGguf);
  deepseek.n_kv_heads = 0;
  deepseek.refine = RefineDeepseekV32;
  deepseek.refine_gguf = RefineGgufDeepseek32;
  return deepseek;
}

Family GlmMoeDsa(const FamilyRows& rows) {
  Family glm = rows.Variant("deepseek_v3", "glm_moe_dsa", kGlmArchitectures, kGlmGguf);
  glm.norm_eps = 1e-5;
  glm.n_kv_heads = 0;
  glm.max_context = 202752;
  glm.refine = RefineGlmMoeDsa;
  glm.refine_gguf = RefineGgufGlmDsa;
  return glm;
}

}  // namespace

std::vector<Family> SparseRows(std::span<const Family> rows) {
  const FamilyRows all(rows);
  return {DeepseekV32(all), GlmMoeDsa(all)};
}

}  // namespace heddle::engine
