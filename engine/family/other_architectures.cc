#include "engine/family/other_architectures.h"

#include <string>

#include "base/message.h"

namespace heddle::engine {
namespace {

// Sources: llama.cpp's list of architectures and its graphs, and transformers' modeling files.
constexpr OtherArchitecture kOthers[] = {
    // Decoders that differ from a row in little.
    {"baichuan BaichuanForCausalLM", "llama",
     "a row of its own: q, k and v are one matrix W_pack, and the 13B models have ALiBi"},
    {"xverse XverseForCausalLM", "llama", "a row of its own with the names of its tensors"},
    {"orion OrionForCausalLM", "llama", "a row with layer norms and Llama's attention"},
    {"internlm2 InternLM2ForCausalLM", "llama",
     "a row of its own: q, k and v are interleaved in one matrix"},
    {"minicpm MiniCPMForCausalLM", "granite", "a row with its scales of embedding and depth"},
    {"exaone ExaoneForCausalLM", "llama", "a row with the names of its tensors"},
    {"maincoder MaincoderForCausalLM", "qwen3", "a row of its own"},
    {"mistral3 Mistral3ForCausalLM", "ministral3",
     "a row for GGUF with scores that grow with the position"},
    {"qwen QWenLMHeadModel", "qwen2", "a row with its fused attention and scaled logits"},
    {"deepseek DeepseekForCausalLM", "deepseek_v2",
     "a row with experts and plain attention instead of latent attention"},
    {"bailingmoe bailingmoe2 BailingMoeForCausalLM BailingMoeV2ForCausalLM", "glm4_moe",
     "a row of its own"},
    {"hunyuan_vl HunYuanVLForConditionalGeneration", "hunyuan_v1_dense",
     "a row that reads its decoder and leaves images aside"},
    {"exaone-moe exaone_moe ExaoneMoeForCausalLM", "exaone4", "a row with its experts"},
    {"olmo OlmoForCausalLM", "llama", "layer norms without weights"},
    {"stablelm StableLmForCausalLM", "gpt_neox",
     "a row with layer norms and norms of single heads"},
    {"phimoe PhimoeForCausalLM", "mixtral", "layer norms and its rule of choosing two experts"},
    {"plm PLMForCausalLM", "deepseek_v2", "latent attention with an MLP without a gate"},
    {"minicpm3 MiniCPM3ForCausalLM", "deepseek_v2", "latent attention with scales of depth"},
    {"arcee-moe afmoe AfmoeForCausalLM", "glm4_moe", "gates on the output of attention"},
    {"grovemoe GroveMoeForCausalLM", "qwen3_moe", "experts that share adjuncts"},
    {"smallthinker SmallThinkerForCausalLM", "qwen3_moe", "a router before attention"},
    {"arctic ArcticForCausalLM", "mixtral", "a dense MLP with a norm of its own beside experts"},
    {"dbrx DbrxForCausalLM", "mixtral", "clamped queries, keys and values and layer norms"},
    {"grok Grok1ForCausalLM", "mixtral", "capped logits beside experts with four norms a layer"},
    {"pangu-embedded PanguEmbeddedForCausalLM", "llama", "a row with its biases"},
    {"codeshell CodeShellForCausalLM", "starcoder2", "a row with its fused attention"},
    {"apertus ApertusForCausalLM", "llama", "the activation xIELU"},
    {"nanochat NanoChatForCausalLM", "llama", "norms without weights and capped logits"},
    {"jais jais2 JAISLMHeadModel", "gpt2", "ALiBi, or its norms and activation"},
    {"starcoder GPTBigCodeForCausalLM gpt_bigcode", "gpt2", "one head of keys and values in GPT-2"},
    {"gptj gptj GPTJForCausalLM", "gpt_neox", "a row of its own"},
    {"kimi_k2 KimiK2ForCausalLM", "deepseek_v3",
     "a row under its name; the arithmetic is DeepSeek-V3's"},
    // Positions and attention that no op computes.
    {"mpt MPTForCausalLM", "gpt2", "ALiBi"},
    {"bloom BloomForCausalLM", "gpt2", "ALiBi and a norm behind the embedding"},
    {"refact GPTRefactForCausalLM", "gpt2", "ALiBi"},
    {"bitnet BitNetForCausalLM BitnetForCausalLM", "llama",
     "norms within attention and MLP, and weights of 1.58 bits"},
    {"openelm OpenELMForCausalLM", "llama", "a row for layers of different numbers of heads"},
    {"mistral4 mistral4_text Mistral4ForCausalLM", "deepseek_v3",
     "a row with scores that grow with the position"},
    {"mimo2 mimo_v2_flash MiMoV2FlashForCausalLM", "gpt_oss",
     "keys and values of different lengths, with sinks in some layers"},
    {"step35 Step3p5ForCausalLM step3p7", "glm4_moe",
     "gates on heads, and layers with different numbers of heads"},
    {"glm-dsa deepseek_v32 DeepseekV32ForCausalLM GlmMoeDsaForCausalLM", "deepseek_v3",
     "sparse attention, whose indexer chooses the positions that are read"},
    {"deepseek_v4 DeepseekV4ForCausalLM", "deepseek_v3",
     "compressed attention and hyper-connections"},
    {"cogvlm CogVLMForCausalLM", "llama", "experts for images"},
    {"chameleon ChameleonForConditionalGeneration", "llama", "norms of single heads with biases"},
    {"paddleocr deepseek2-ocr", "", "the images that it is made for"},
    // State beside or in place of keys and values.
    {"mamba MambaForCausalLM FalconMambaForCausalLM falcon_mamba", "mamba2",
     "a recurrence whose decay differs by element of the state (Mamba 1)"},
    {"jamba JambaForCausalLM", "mamba2",
     "a recurrence whose decay differs by element of the state (Mamba 1)"},
    {"plamo2 plamo3 plamo PlamoForCausalLM Plamo2ForCausalLM", "",
     "rows of its own, and in the second recurrent layers"},
    {"kimi-linear kimi_linear KimiLinearForCausalLM", "deepseek_v3",
     "recurrent layers (Kimi delta attention) and their state"},
    {"rwkv6 rwkv7 arwkv7 rwkv6qwen2 RwkvForCausalLM", "",
     "recurrent layers (RWKV) and their state"},
    {"minimax MiniMaxForCausalLM MiniMaxText01ForCausalLM", "minimax_m2",
     "layers of linear attention and their state"},
    // No decoders of text from left to right.
    {"dream llada llada-moe rnd1 DreamModel LLaDAModelLM diffusion_gemma", "",
     "diffusion of text: it does not write from left to right"},
    {"t5 t5encoder T5ForConditionalGeneration t5gemma", "", "an encoder beside the decoder"},
    {"nomic-bert-moe neo-bert jina-bert-v3 MPNetModel AlbertModel DebertaV2Model", "bert",
     "a row of its own among encoders"},
    {"jina-bert-v2 JinaBertModel JinaBertForMaskedLM JinaBertForSequenceClassification", "bert",
     "scores that fall with the distance of two tokens, in both directions (ALiBi)"},
    {"llama-embed LlamaBidirectionalModel", "eurobert",
     "a row of its own among encoders: attention in both directions"},
    {"clip wavtokenizer-dec", "", "a decoder: it is a model of images or sound"},
};

}  // namespace

std::span<const OtherArchitecture> OtherArchitectures() { return kOthers; }

const OtherArchitecture* FindOtherArchitecture(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return nullptr;
  for (const OtherArchitecture& other : kOthers) {
    const std::string all = base::StrCat(" ", other.names, " ");
    if (all.find(base::StrCat(" ", name, " ")) != std::string::npos) return &other;
  }
  return nullptr;
}

}  // namespace heddle::engine
