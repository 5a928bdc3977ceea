#include "engine/family/other_architectures.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "engine/family/family_table.h"

namespace heddle::engine {
namespace {

// Sources: llama.cpp's list of architectures and its graphs, and transformers' modeling files.
constexpr OtherArchitecture kOthers[] = {
    // Decoders that differ from a row in little.
    {"baichuan BaichuanForCausalLM", "llama",
     "a row of its own: q, k and v are one matrix W_pack, and the 13B models have ALiBi"},
    {"xverse XverseForCausalLM", "llama", "a row of its own with the names of its tensors"},
    {"orion OrionForCausalLM", "llama", "a row with layer norms and Llama's attention"},
    {"internlm2 InternLM2ForCausalLM InternLM2ForRewardModel", "llama",
     "a row of its own: q, k and v are interleaved in one matrix"},
    {"maincoder MaincoderForCausalLM", "qwen3", "a row of its own"},
    {"qwen QWenLMHeadModel", "qwen2", "a row with its fused attention and scaled logits"},
    {"deepseek DeepseekForCausalLM", "deepseek_v2",
     "a row with experts and plain attention instead of latent attention"},
    {"bailingmoe bailingmoe2 BailingMoeForCausalLM BailingMoeV2ForCausalLM", "glm4_moe",
     "a row of its own"},
    {"hunyuan_vl HunYuanVLForConditionalGeneration", "hunyuan_v1_dense",
     "a row that reads its decoder and leaves images aside"},
    {"olmo OlmoForCausalLM", "llama", "layer norms without weights"},
    {"phimoe PhimoeForCausalLM PhiMoEForCausalLM", "mixtral",
     "layer norms and its rule of choosing two experts"},
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
    {"nanochat NanoChatForCausalLM", "llama", "norms without weights and capped logits"},
    {"jais JAISLMHeadModel", "gpt2", "ALiBi"},
    {"starcoder GPTBigCodeForCausalLM gpt_bigcode", "gpt2", "one head of keys and values in GPT-2"},
    {"gptj gptj GPTJForCausalLM", "gpt_neox", "a row of its own"},
    {"kimi_k2 KimiK2ForCausalLM", "deepseek_v3",
     "a row under its name; the arithmetic is DeepSeek-V3's"},
    {"granitemoe_swa GraniteMoeSWAForCausalLM", "granite_swa", "a row with its experts"},
    {"graniteswitch", "granite", "adapters that a router chooses"},
    {"cohere2moe cohere2_moe Cohere2MoeForCausalLM", "cohere2", "a row with its experts"},
    {"cohere_compass_text CohereCompassForCausalLM", "cohere2", "a row of its own"},
    {"exaone4_5 exaone4_5_text Exaone4_5_ForConditionalGeneration", "exaone4",
     "a row that reads its decoder and leaves images aside"},
    {"sarvam_moe SarvamMoEForCausalLM", "glm4_moe", "a row with its fused attention"},
    {"sarvam_mla SarvamMLAForCausalLM", "deepseek_v3", "a row with the names of its tensors"},
    {"axk1 AXK1ForCausalLM", "deepseek_v3", "a norm behind its experts"},
    {"kolibri1 Kolibri1ForCausalLM", "glm4_moe",
     "experts that are chosen by their logits before the sigmoid"},
    {"flint FlintForCausalLM", "qwen3_moe", "a shared expert without a gate"},
    {"beam BeamForCausalLM", "qwen3_moe", "queries that grow with a power of the position"},
    {"flex_olmo FlexOlmoForCausalLM", "olmo2", "a row with its experts"},
    {"longcat_flash LongcatFlashForCausalLM", "deepseek_v3",
     "experts that do nothing, and two attentions a layer"},
    {"jetmoe JetMoeForCausalLM", "mixtral", "experts of attention"},
    {"doge DogeForCausalLM", "llama", "masks that the values compute, and experts of its own"},
    {"diffllama DiffLlamaForCausalLM", "llama", "attention as a difference of two"},
    {"laguna LagunaForCausalLM", "glm4_moe",
     "gates on heads, and layers with different numbers of heads"},
    {"zaya ZayaForCausalLM", "qwen3_moe", "attention on convolved queries and keys"},
    {"dory DoryForCausalLM", "llama", "a stream on the unit sphere, and layers that run twice"},
    {"nanbeige hrm_text HrmTextForCausalLM", "llama", "layers that run several times"},
    {"talkie", "llama", "the embedding beside every layer's stream, and gains of heads"},
    {"inkling_text InklingForCausalLM inkling2_text Inkling2ForCausalLM inkling2_loop_text "
     "Inkling2LoopForCausalLM",
     "lfm2", "logits of relative positions beside short convolutions"},
    {"muse-glimmer muse_glimmer muse_glimmer_text muse_spark muse_spark_text", "gemma2",
     "gates on heads and scaled norms of queries and keys"},
    {"gemma4_unified gemma4_unified_text Gemma4UnifiedForCausalLM", "gemma4",
     "a row that reads its decoder"},
    {"gemma4-assistant gemma4_assistant gemma4_mtp Gemma4AssistantForCausalLM "
     "gemma4_unified_assistant dflash dflash-draft",
     "", "a model to guess for: it drafts for another one and writes nothing alone"},
    {"maple spark2_5 k2-horizon openpangu", "", "a row of its own"},
    {"opt OPTForCausalLM gpt_neo GPTNeoForCausalLM codegen CodeGenForCausalLM xglm "
     "XGLMForCausalLM biogpt BioGptForCausalLM persimmon PersimmonForCausalLM",
     "gpt_neox", "a row of its own"},
    {"openai-gpt OpenAIGPTLMHeadModel ctrl CTRLLMHeadModel cpmant CpmAntForCausalLM "
     "RuGPT3XLForCausalLM",
     "gpt2", "a row of its own"},
    {"gpt_neox_japanese GPTNeoXJapaneseForCausalLM", "gpt_neox", "a row of its own"},
    {"kormo KORMoForCausalLM", "llama", "a row with the names of its tensors"},
    {"modernbert-decoder ModernBertDecoderForCausalLM", "modernbert",
     "a row that reads ModernBERT from left to right"},
    {"ChatGLMModel ChatGLMForConditionalGeneration", "glm",
     "a reader of its folders; its GGUF files run (chatglm)"},
    {"stablelm_epoch StableLMEpochForCausalLM LlavaStableLMEpochForCausalLM", "stablelm",
     "a reader of its older keys; folders that transformers has saved run (StableLmForCausalLM)"},
    {"RefinedWeb RefinedWebModel RWForCausalLM", "falcon",
     "a reader of its older keys; folders that transformers has saved run (FalconForCausalLM)"},
    {"MambaLMHeadModel", "mamba",
     "a reader of its authors' own files; folders that transformers has saved run "
     "(MambaForCausalLM)"},
    {"phi3_v Phi3VForCausalLM Phi4ForCausalLMV", "phi3",
     "a row that reads its decoder and leaves images aside"},
    {"LlavaLlamaForCausalLM LlavaMistralForCausalLM llava_llama llava_mistral "
     "VLlama3ForCausalLM Sarashina2VisionForCausalLM idefics IdeficsForVisionText2Text",
     "llama", "a row that reads its decoder and leaves images aside"},
    {"LlavaQwenForCausalLM llava_qwen minicpmv MiniCPMV minicpmo MiniCPMO", "qwen2",
     "a row that reads its decoder and leaves images aside"},
    {"apertus1p5 Apertus1p5ForConditionalGeneration", "apertus",
     "a row that reads its decoder and leaves images aside"},
    {"granite4_vision Granite4VisionForConditionalGeneration granite_docling "
     "GraniteDoclingForConditionalGeneration",
     "granite", "a row that reads its decoder and leaves images aside"},
    {"ernie4_5_vl_moe Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_moe",
     "experts for images beside those for text"},
    {"aria_text AriaTextForCausalLM", "mixtral", "a row with its experts"},
    {"phi4_multimodal Phi4MultimodalForCausalLM Phi4MMForCausalLM", "phi3",
     "adapters that images and sound switch on; the text model Phi-4-mini runs"},
    {"emu3 Emu3ForCausalLM fuyu FuyuForCausalLM mllama MllamaForCausalLM mllama_text_model "
     "MllamaForConditionalGeneration",
     "llama", "a row that reads its decoder and leaves images aside"},
    {"qwen2_5_omni Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel qwen3_omni_moe "
     "Qwen3OmniMoeForConditionalGeneration",
     "qwen3_vl", "a row that reads the decoder inside it and leaves sound aside"},
    // Positions and attention that no op computes.
    {"mpt MPTForCausalLM MptForCausalLM", "gpt2", "ALiBi"},
    {"bloom BloomForCausalLM", "gpt2", "ALiBi and a norm behind the embedding"},
    {"refact GPTRefactForCausalLM", "gpt2", "ALiBi"},
    {"bitnet bitnet-25 bitnet-b1.58 BitNetForCausalLM BitnetForCausalLM", "llama",
     "norms within attention and MLP, and weights of 1.58 bits"},
    {"openelm OpenELMForCausalLM", "llama", "a row for layers of different numbers of heads"},
    {"mistral4 mistral4_text Mistral4ForCausalLM", "deepseek_v3",
     "a row with scores that grow with the position"},
    {"mimo2 mimo_v2_flash MiMoV2FlashForCausalLM MiMoV2ForCausalLM", "gpt_oss",
     "keys and values of different lengths, with sinks in some layers"},
    {"step35 step3p5 Step3p5ForCausalLM step3p7 Step3p7FlashForCausalLM "
     "StepVLForConditionalGeneration "
     "Step3p7ForConditionalGeneration",
     "glm4_moe", "gates on heads, and layers with different numbers of heads"},
    {"axk2 AXK2ForCausalLM mistral_large4 MistralLarge4ForConditionalGeneration dots3note "
     "dots3_note Dots3NoteForCausalLM",
     "deepseek_v3", "sparse attention, whose indexer chooses the positions that are read"},
    {"minimax-m3 minimax_m3 minimax_m3_vl MiniMaxM3ForCausalLM MiniMaxM3VLForCausalLM "
     "MiniMaxM3SparseForConditionalGeneration",
     "minimax_m2", "sparse attention, whose indexer chooses the positions that are read"},
    {"deepseek4 deepseek_v4 DeepseekV4ForCausalLM hy_v4 HYV4ForCausalLM hy_v4_vl", "deepseek_v3",
     "sparse or compressed attention, and hyper-connections"},
    {"glm5-next glm5_next", "glm4_moe",
     "layers of linear attention, sparse attention and hyper-connections"},
    {"qwen4exp qwen4_exp Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration", "qwen3_5_moe",
     "sparse attention, embeddings of n-grams and gates on its residuals"},
    {"cogvlm CogVLMForCausalLM", "llama", "experts for images"},
    {"phi3small Phi3SmallForCausalLM", "phi3", "attention in blocks and a clamped gated GELU"},
    {"blt BltForCausalLM", "", "patches of bytes in the place of tokens"},
    {"chameleon ChameleonForConditionalGeneration", "llama", "norms of single heads with biases"},
    {"paddleocr paddleocr_vl deepseek2-ocr deepseek_ocr2 unlimited_ocr glm_ocr "
     "GlmOcrForConditionalGeneration DeepseekOCRForCausalLM blip_text_model pix2struct "
     "pp_formulanet kosmos_2 kosmos_2_5 udop UdopForConditionalGeneration vision-encoder-decoder "
     "VisionEncoderDecoderModel git GitForCausalLM molmo2 Molmo2Model cosmos3_edge",
     "", "the images that it is made for"},
    // State beside or in place of keys and values.
    {"phi4flash", "", "a reader of its GGUF files; its folder runs (Phi4FlashForCausalLM)"},
    {"plamo2 plamo3 plamo PlamoForCausalLM Plamo2ForCausalLM", "",
     "rows of its own, and in the second recurrent layers"},
    {"kimi-linear kimi_linear KimiLinearForCausalLM kimi-k3 bailingmoe3 bailing_hybrid "
     "BailingHybridForCausalLM",
     "deepseek_v3", "recurrent layers (Kimi delta attention) and their state"},
    {"olmo_hybrid OlmoHybridForCausalLM lara_mini LaraMiniForCausalLM", "qwen3_next",
     "a row of its own with gated delta nets"},
    {"zamba ZambaForCausalLM zamba2 Zamba2ForCausalLM", "mamba2",
     "a block of attention that several layers share, each with its own adapter"},
    {"lfm3 Lfm3ForCausalLM", "lfm2", "gates on heads, norms behind blocks and windows"},
    {"recurrent_gemma RecurrentGemmaForCausalLM xlstm xLSTMForCausalLM", "",
     "recurrent layers and their state"},
    {"rwkv6 rwkv6qwen2 RwkvForCausalLM", "rwkv7", "RWKV's older recurrent layers and their state"},
    {"RwkvHybridForCausalLM rwkv_hybrid", "",
     "a reader of its folders; its GGUF files run (arwkv7)"},
    {"minimax minimax-01 MiniMaxForCausalLM MiniMaxText01ForCausalLM", "minimax_m2",
     "layers of linear attention and their state"},
    // No decoders of text from left to right.
    {"dream llada llada-moe rnd1 DreamModel LLaDAModelLM diffusion_gemma", "",
     "diffusion of text: it does not write from left to right"},
    {"qwen3tts pockettts musicgen MusicgenForCausalLM musicgen_melody MusicgenMelodyForCausalLM "
     "moshi MoshiForCausalLM",
     "", "a decoder of sound: it writes codes of sound"},
    {"pi0 PI0ForConditionalGeneration evolla EvollaForProteinText2Text", "",
     "inputs that are no text"},
    {"xlnet XLNetLMHeadModel xlm XLMWithLMHeadModel flaubert FlaubertWithLMHeadModel reformer "
     "ReformerModelWithLMHead",
     "", "attention of its own, in an order of its own"},
    {"t5 t5encoder T5ForConditionalGeneration t5gemma T5GemmaForConditionalGeneration t5gemma2 "
     "T5Gemma2ForConditionalGeneration umt5 UMT5ForConditionalGeneration mt5 "
     "MT5ForConditionalGeneration bart BartForConditionalGeneration whisper "
     "WhisperForConditionalGeneration T5WithLMHeadModel longt5 LongT5ForConditionalGeneration "
     "blenderbot BlenderbotForCausalLM blenderbot-small BlenderbotSmallForCausalLM marian "
     "MarianForCausalLM MarianMTModel mbart MBartForCausalLM m2m_100 "
     "M2M100ForConditionalGeneration "
     "mvp MvpForCausalLM pegasus PegasusForCausalLM plbart PLBartForCausalLM led "
     "LEDForConditionalGeneration bigbird_pegasus BigBirdPegasusForCausalLM prophetnet "
     "ProphetNetForCausalLM trocr TrOCRForCausalLM",
     "", "an encoder beside the decoder"},
    {"albert AlbertModel", "bert",
     "a product between the embedding and layers that share their weights"},
    {"nomic-bert-moe", "nomic_bert", "experts in every second layer of an encoder"},
    {"neo-bert NeoBERT rembert RemBertModel convbert ConvBertModel squeezebert "
     "mobilebert MobileBertModel megatron-bert MegatronBertModel ultrabert UltrabertModel "
     "xlm-roberta-xl XLMRobertaXLModel roformer RoFormerModel NeoBERTLMHead SqueezeBertModel "
     "bert-generation BertGenerationDecoder roberta-prelayernorm RobertaPreLayerNormModel roc_bert "
     "RoCBertModel xmod XmodModel ibert IBertModel nystromformer NystromformerModel canine "
     "CanineModel funnel FunnelModel fnet FNetModel luke LukeModel mra MraModel perceiver "
     "PerceiverModel yoso YosoModel neomme NeoMMEModel ultravbert UltraVBertModel splinter "
     "SplinterModel",
     "bert", "a row of its own among encoders"},
    {"layoutlm LayoutLMModel layoutlmv2 LayoutLMv2Model layoutlmv3 LayoutLMv3Model lilt LiltModel "
     "markuplm MarkupLMModel tapas TapasModel bros BrosModel",
     "bert", "the places of words on pages and in tables"},
    {"esm EsmModel esmc EsmcModel", "bert", "a vocabulary of proteins"},
    {"Lfm2BidirectionalModel", "lfm2", "convolutions that see both directions"},
    {"jina-bert-v3", "jina_embeddings_v3",
     "a reader of its GGUF files; its folder runs (JinaEmbeddingsV3Model)"},
    {"deberta deberta-v2 DebertaModel DebertaV2Model DebertaV2ForSequenceClassification "
     "DebertaForSequenceClassification DebertaV2ForMaskedLM",
     "bert", "scores of content and relative position beside each other (DeBERTa)"},
    {"longformer LongformerModel big_bird BigBirdModel", "roberta",
     "windows with tokens that see everything"},
    {"gemma-embedding2 embedding_gemma2 EmbeddingGemma2Model", "embedding_gemma",
     "inputs of single layers, in both directions"},
    {"clip wavtokenizer-dec clip_text_model CLIPTextModel CLIPVisionModelWithProjection vit "
     "ViTModel tipsv2 Tipsv2TextModel",
     "", "a decoder: it is a model of images or sound"},
};

// Classes of families that run as encoders.
constexpr OtherArchitecture kCausalEncoders = {
    "BertLMHeadModel RobertaForCausalLM CamembertForCausalLM XLMRobertaForCausalLM "
    "ElectraForCausalLM ErnieForCausalLM Data2VecTextForCausalLM",
    "bert", "a row that reads it from left to right"};
// Classes of any family with heads that no API asks.
constexpr OtherArchitecture kOfSingleTokens = {"", "", "an API for classes of single tokens"};
constexpr OtherArchitecture kOfAnswers = {"", "", "an API for answers within a text"};

// The family in a class's name, and in a decoder's model_type ("qwen4_exp_text").
std::string_view FamilyPartOf(std::string_view name) {
  const size_t head = name.rfind("For");
  const bool has_head = head != name.npos && head > 0 && head + 3 < name.size() &&
                        absl::ascii_isupper(static_cast<unsigned char>(name[head + 3]));
  if (has_head) name = name.substr(0, head);
  for (const std::string_view end : {"WithLMHeadModel", "ModelWithLMHead", "LMHeadModel",
                                     "EncoderModel", "Model", "_text_model", "_text"}) {
    if (has_head || !name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    break;
  }
  if (name.ends_with("Text")) name.remove_suffix(4);
  return name;
}

template <typename Predicate>
bool HasName(const OtherArchitecture& other, Predicate is_it) {
  std::string_view left = other.names;
  while (!left.empty()) {
    const size_t blank = std::min(left.find(' '), left.size());
    if (is_it(left.substr(0, blank))) return true;
    left.remove_prefix(std::min(blank + 1, left.size()));
  }
  return false;
}

template <typename Predicate>
const OtherArchitecture* FindByName(Predicate is_it) {
  for (const OtherArchitecture& other : kOthers) {
    if (HasName(other, is_it)) return &other;
  }
  return nullptr;
}

}  // namespace

std::span<const OtherArchitecture> OtherArchitectures() { return kOthers; }

const OtherArchitecture* FindOtherArchitecture(std::string_view name) {
  if (name.empty()) return nullptr;
  const auto is_same = [name](std::string_view known) { return known == name; };
  const auto has_same_stem = [stem = FamilyPartOf(name)](std::string_view known) {
    return !stem.empty() && FamilyPartOf(known) == stem;
  };
  if (const OtherArchitecture* other = FindByName(is_same)) return other;
  if (HasName(kCausalEncoders, is_same)) return &kCausalEncoders;
  if (const OtherArchitecture* other = FindByName(has_same_stem)) return other;
  const bool is_of_row = std::ranges::any_of(FamilyTable(), [&](const Family& family) {
    return std::ranges::any_of(family.architectures, has_same_stem);
  });
  if (!is_of_row) return nullptr;
  if (name.ends_with("ForTokenClassification")) return &kOfSingleTokens;
  return name.ends_with("ForQuestionAnswering") ? &kOfAnswers : nullptr;
}

}  // namespace heddle::engine
