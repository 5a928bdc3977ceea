// Keys of configurations that nobody reads are refused, and those of published models are not among
// them.
#include <fstream>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/paths.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

absl::Status StatusOf(const json& config) {
  return DescribeConfig(config, json::object(), "m/config.json").status();
}

TEST_CASE("Configurations of published models and of transformers' classes are read",
          "[model][unit]") {
  std::ifstream in(test::SourceDir() / "tests/model/configs.jsonl");
  REQUIRE(in);
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const json golden = json::parse(line);
    const absl::Status status = StatusOf(golden.at("config"));
    INFO(golden.at("name") << ": " << status.ToString());
    // Defaults of classes are no models: some of them contradict each other.
    const bool is_class = golden.at("name").get<std::string>().starts_with("transformers ");
    CHECK((status.ok() || is_class));
    CHECK(status.message().find("nothing reads it") == status.message().npos);
  }
  CHECK(count >= 50);
}

TEST_CASE("A key that nobody reads and nobody knows is refused by its name", "[model][unit]") {
  for (const char* name :
       {"llama", "qwen3_moe", "gemma3_images", "deepseek_v3", "falcon", "gpt2"}) {
    INFO(name);
    json config = *test::LoadGolden(name).config;
    CHECK(StatusOf(config).ok());
    json& decoder = config.contains("text_config") ? config["text_config"] : config;
    decoder["residual_gate_rank"] = nullptr;
    CHECK(StatusOf(config).ok());
    decoder["residual_gate_rank"] = 8;
    test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                     {"residual_gate_rank\" is 8", "nothing reads it"});
  }
  // Another family's key that this family does not read is as unknown as any.
  json config = *test::LoadGolden("llama").config;
  config["residual_multiplier"] = 0.25;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"\"residual_multiplier\""});
  config = *test::LoadGolden("llama3_rope").config;
  config["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                   {"\"rope_scaling.llama_4_scaling_beta\" is 0.1"});
  config = *test::LoadGolden("qwen2").config;
  config["ladder_residual"] = true;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                   {"\"ladder_residual\" is true", "only llama has it"});
  config["ladder_residual"] = false;
  CHECK(StatusOf(config).ok());
  // Some are known to be harmless with one value only.
  config = *test::LoadGolden("mistral").config;
  config["attention_bias"] = false;
  CHECK(StatusOf(config).ok());
  config["attention_bias"] = true;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented,
                   {"\"attention_bias\" is true"});
  // A second name says what the first one says.
  config = *test::LoadGolden("deepseek_v3").config;
  config["num_experts"] = config["n_routed_experts"];
  CHECK(StatusOf(config).ok());
  config["num_experts"] = 3;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"\"num_experts\" is 3"});
  config = *test::LoadGolden("gemma2").config;
  config["sliding_window_size"] = config["sliding_window"];
  CHECK(StatusOf(config).ok());
  config["sliding_window_size"] = 77;
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"\"sliding_window_size\""});
  config = *test::LoadGolden("qwen3_5").config;
  config["output_gate_type"] = "swish";
  CHECK(StatusOf(config).ok());
  config["output_gate_type"] = "sigmoid";
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"\"sigmoid\""});
  config = *test::LoadGolden("qwen3_moe").config;
  config["layer_types"] = json::array({"full_attention", "linear_attention"});
  CHECK_FALSE(StatusOf(config).ok());
}

// The names of general.architecture in the package gguf 0.19, in llama.cpp of October 2026, and in
// ik_llama.cpp of August 2026.
constexpr std::string_view kGgufArchitectures =
    "clip llama llama4 deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder "
    "refact bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 "
    " eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe "
    "qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe phi2 phi3 phimoe plamo plamo2 "
    "plamo3 codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n "
    "gemma4 gemma-embedding starcoder2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 mamba mamba2 "
    "jamba xverse command-r cohere2 dbrx olmo olmo2 olmoe openelm arctic deepseek "
    "deepseek2 deepseek2-ocr chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais "
    "jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe granite "
    "granitemoe granitehybrid chameleon wavtokenizer-dec plm bailingmoe bailingmoe2 "
    "dots1 arcee afmoe ernie4_5 ernie4_5-moe falcon-h1 hunyuan-moe hunyuan-dense "
    "hunyuan_vl smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe "
    "seed_oss grovemoe apertus minimax-m2 cogvlm rnd1 pangu-embedded mistral3 "
    "mistral4 paddleocr mimo2 step35 llama-embed maincoder kimi-linear "
    "qwen4exp gemma4-assistant gemma-embedding2 maple cohere2moe deepseek32 deepseek4 "
    "graniteswitch granite_swa bailingmoe3 dots3note laguna hy_v3 hy_v4 minimax-01 hrm_text "
    "spark2_5 kimi-k3 glm5-next talkie mellum nanbeige qwen3tts pockettts k2-horizon "
    "bitnet-25 bitnet-b1.58 cohere2_moe minimax-m3 gemma4_mtp dflash dflash-draft openpangu "
    "muse-glimmer ";

// Classes of transformers 5.24 that write text, or that servers of embeddings run.
constexpr std::string_view kClasses =
    "AXK1ForCausalLM AXK2ForCausalLM AfmoeForCausalLM ApertusForCausalLM ArceeForCausalLM "
    "AriaTextForCausalLM BailingHybridForCausalLM BambaForCausalLM BeamForCausalLM "
    "BioGptForCausalLM BitNetForCausalLM BloomForCausalLM CodeGenForCausalLM CohereForCausalLM "
    "Cohere2ForCausalLM Cohere2MoeForCausalLM CohereCompassForCausalLM CwmForCausalLM "
    "DbrxForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM "
    "DeepseekV4ForCausalLM DiffLlamaForCausalLM DogeForCausalLM DoryForCausalLM "
    "Dots1ForCausalLM Dots3NoteForCausalLM Emu3ForCausalLM Ernie4_5ForCausalLM "
    "Ernie4_5_MoeForCausalLM Exaone4ForCausalLM ExaoneMoeForCausalLM FalconForCausalLM "
    "FalconH1ForCausalLM FalconMambaForCausalLM FlexOlmoForCausalLM FlintForCausalLM "
    "FuyuForCausalLM GemmaForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM Gemma4ForCausalLM "
    "Gemma4AssistantForCausalLM Gemma4UnifiedForCausalLM GlmForCausalLM Glm4ForCausalLM "
    "Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM GPT2LMHeadModel "
    "GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoForCausalLM GPTNeoXForCausalLM "
    "GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM "
    "GraniteMoeSharedForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM "
    "HeliumForCausalLM HrmTextForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM "
    "HYV3ForCausalLM HYV4ForCausalLM HyperCLOVAXForCausalLM InklingForCausalLM "
    "Inkling2ForCausalLM InternLM3ForCausalLM IQuestCoderForCausalLM JambaForCausalLM "
    "JetMoeForCausalLM KimiLinearForCausalLM Kolibri1ForCausalLM LagunaForCausalLM "
    "LaraMiniForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM Lfm3ForCausalLM LlamaForCausalLM "
    "LongcatFlashForCausalLM MambaForCausalLM Mamba2ForCausalLM MellumForCausalLM "
    "MiMoV2FlashForCausalLM MiniCPM3ForCausalLM MiniMaxForCausalLM MiniMaxM2ForCausalLM "
    "MiniMaxM3VLForCausalLM MinistralForCausalLM Ministral3ForCausalLM MistralForCausalLM "
    "Mistral4ForCausalLM MixtralForCausalLM MllamaForCausalLM MptForCausalLM "
    "NanoChatForCausalLM NemotronForCausalLM NemotronHForCausalLM OlmoForCausalLM "
    "Olmo2ForCausalLM Olmo3ForCausalLM OlmoHybridForCausalLM OlmoeForCausalLM OPTForCausalLM "
    "PersimmonForCausalLM PhiForCausalLM Phi3ForCausalLM Phi4MultimodalForCausalLM "
    "PhimoeForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3ForCausalLM "
    "Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen4ExpForCausalLM RecurrentGemmaForCausalLM "
    "RwkvForCausalLM SarvamMoEForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM "
    "SolarOpenForCausalLM StableLmForCausalLM Starcoder2ForCausalLM Step3p5ForCausalLM "
    "VaultGemmaForCausalLM XGLMForCausalLM xLSTMForCausalLM YoutuForCausalLM ZambaForCausalLM "
    "Zamba2ForCausalLM ZayaForCausalLM "
    "BertModel RobertaModel XLMRobertaModel CamembertModel DistilBertModel ModernBertModel "
    "NomicBertModel EuroBertModel GteModel JinaEmbeddingsV3Model MPNetModel ElectraModel "
    "ErnieModel Data2VecTextModel AlbertModel DebertaModel DebertaV2Model RemBertModel "
    "ConvBertModel MobileBertModel MegatronBertModel XLMRobertaXLModel RoFormerModel "
    "LongformerModel BigBirdModel UltrabertModel EmbeddingGemma2Model JinaBertForMaskedLM "
    "LlamaBidirectionalModel T5ForConditionalGeneration UMT5ForConditionalGeneration";

bool SaysWhatIsMissing(const absl::Status& status) {
  return status.message().find("it needs ") != absl::string_view::npos;
}

TEST_CASE("Every architecture of llama.cpp is served, or it is said what is missing",
          "[model][unit]") {
  std::istringstream names{std::string(kGgufArchitectures)};
  int served = 0;
  int count = 0;
  for (std::string name; names >> name; ++count) {
    test::TempDir dir;
    test::WriteFile(dir / "m.gguf",
                    test::GgufWriter().String("general.architecture", name).Bytes());
    auto checkpoint = OpenCheckpoint(dir / "m.gguf");
    REQUIRE(checkpoint.ok());
    const absl::Status status = Describe(*checkpoint).status();
    INFO(name << ": " << status.ToString());
    REQUIRE_FALSE(status.ok());  // it has no sizes
    const bool is_known = absl::IsInvalidArgument(status);
    served += is_known ? 1 : 0;
    CHECK((is_known || SaysWhatIsMissing(status)));
  }
  CHECK(count > 150);
  CHECK(served >= 60);
}

TEST_CASE("Every class of transformers is served, or it is said what is missing", "[model][unit]") {
  std::istringstream names{std::string(kClasses)};
  int served = 0;
  int count = 0;
  for (std::string name; names >> name; ++count) {
    const absl::Status status = StatusOf({{"architectures", {name}}});
    INFO(name << ": " << status.ToString());
    REQUIRE_FALSE(status.ok());  // it has no sizes
    const bool is_known = absl::IsInvalidArgument(status);
    served += is_known ? 1 : 0;
    CHECK((is_known || SaysWhatIsMissing(status)));
  }
  CHECK(count > 150);
  CHECK(served >= 80);
}

TEST_CASE("The nearest family is the one of the nearest arithmetic", "[model][unit]") {
  json config = *test::LoadGolden("llama").config;
  for (const auto& [name, nearest] :
       {std::pair("KimiLinearForCausalLM",
                  "delta attention) and their state; the nearest family that runs is deepseek_v3"),
        {"BloomForCausalLM", "ALiBi"},
        {"DebertaV2Model", "(DeBERTa); the nearest family that runs is bert"}}) {
    config["architectures"] = json::array({name});
    test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {nearest});
  }
  // Other classes of the same family, and the decoder inside a larger model.
  for (const auto& [name, missing] : {std::pair("BloomForSequenceClassification", "ALiBi"),
                                      {"RoFormerForMaskedLM", "among encoders"},
                                      {"T5EncoderModel", "an encoder beside the decoder"},
                                      {"Apertus1p5TextForCausalLM", "is apertus"},
                                      {"BertLMHeadModel", "from left to right"},
                                      {"BertForTokenClassification", "classes of single tokens"},
                                      {"BloomForTokenClassification", "ALiBi"},
                                      {"Qwen3ForQuestionAnswering", "answers within a text"}}) {
    config["architectures"] = json::array({name});
    test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"it needs", missing});
  }
  config["architectures"] = json::array({"ZebraForQuestionAnswering"});
  CHECK(StatusOf(config).message().find("it needs") == absl::string_view::npos);
  config.erase("architectures");
  config["model_type"] = "qwen4_exp_text";
  test::CheckError(StatusOf(config), absl::StatusCode::kUnimplemented, {"gates on its residuals"});
  // Nothing is said of a name that is far from all.
  config["architectures"] = json::array({"ZebraForCausalLM"});
  CHECK(StatusOf(config).message().find("nearest") == absl::string_view::npos);
}

}  // namespace
}  // namespace heddle::engine
