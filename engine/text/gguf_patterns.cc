#include "engine/text/gguf_patterns.h"

#include <array>

#include "engine/text/regex_scanners.h"

namespace heddle::engine::text {
namespace {

using Splits = std::span<const std::string_view>;

constexpr std::string_view kQwen2Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen35Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kO200kPattern =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kTekkenPattern =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
// Letters of alphabets with two cases, as ranges of code points.
constexpr std::string_view kDeepseekWords =
    "\\s?["
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}"
    "\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}-\\x{377}"
    "\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}"
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"
    "\\x{214E}\\x{2183}-\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"
    "\\x{2CF2}-\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
    "]+";
constexpr std::string_view kDeepseekHan = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kBloomPattern = " ?[^(\\s|.,!?…。，、।۔،)]+";
constexpr std::string_view kThreeDigits = "[0-9]{3}";

constexpr std::array kGpt2 = {kGpt2Pattern};
constexpr std::array kCl100k = {kCl100kPattern};
constexpr std::array kQwen2 = {kQwen2Pattern};
constexpr std::array kQwen35 = {kQwen35Pattern};
constexpr std::array kO200k = {kO200kPattern};
constexpr std::array kTekken = {kTekkenPattern};
constexpr std::array kBloom = {kBloomPattern};
constexpr std::array<std::string_view, 2> kViking = {kBloomPattern, "\\p{N}"};
constexpr std::array<std::string_view, 2> kStarcoder = {"\\p{N}", kGpt2Pattern};
constexpr std::array<std::string_view, 4> kDefault = {"[\\p{P}\\$\\+<=>\\^~\\|]+", kGpt2Pattern,
                                                      "\\p{N}+", kThreeDigits};
constexpr std::array<std::string_view, 3> kFalcon = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", kGpt2Pattern,
                                                     kThreeDigits};
constexpr std::array<std::string_view, 6> kDeepseekLlm = {
    "[\r\n]", kDeepseekWords, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", kDeepseekHan, "\\p{N}+"};
constexpr std::array<std::string_view, 5> kDeepseekCoder = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                                                            kDeepseekHan, "\\p{N}"};
constexpr std::array<std::string_view, 3> kDeepseek3 = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                                                        kDeepseek3Pattern};

constexpr std::array kPatterns = {
    GgufPattern{"default", kDefault},
    GgufPattern{"llama3", kCl100k, true, true},
    GgufPattern{"llama-v3", kCl100k, true, true},
    GgufPattern{"llama-bpe", kCl100k, true, true},
    GgufPattern{"falcon3", kCl100k, true, true},
    GgufPattern{"falcon-h1", kCl100k, true, true},
    GgufPattern{"pixtral", kCl100k, true, true},
    GgufPattern{"lfm2", kCl100k, true, true},
    GgufPattern{"dbrx", kCl100k},
    GgufPattern{"smaug-bpe", kCl100k},
    GgufPattern{"glm4", kCl100k},
    GgufPattern{"chatglm-bpe", kCl100k},
    GgufPattern{"stablelm2", kQwen2},
    GgufPattern{"qwen2", kQwen2},
    GgufPattern{"hunyuan", kQwen2},
    GgufPattern{"megrez", kQwen2},
    GgufPattern{"deepseek-r1-qwen", kQwen2},
    GgufPattern{"qwen35", kQwen35},
    GgufPattern{"gpt-4o", kO200k},
    GgufPattern{"llama4", kO200k},
    GgufPattern{"tekken", kTekken, true, true},
    GgufPattern{"gpt-2", kGpt2},
    GgufPattern{"phi-2", kGpt2},
    GgufPattern{"jina-es", kGpt2},
    GgufPattern{"jina-de", kGpt2},
    GgufPattern{"gigachat", kGpt2},
    GgufPattern{"jina-v2-es", kGpt2},
    GgufPattern{"jina-v2-de", kGpt2},
    GgufPattern{"jina-v2-code", kGpt2},
    GgufPattern{"roberta-bpe", kGpt2},
    GgufPattern{"modern-bert", kGpt2},
    GgufPattern{"trillion", kGpt2},
    GgufPattern{"mpt", kGpt2},
    GgufPattern{"olmo", kGpt2},
    GgufPattern{"jais", kGpt2},
    GgufPattern{"starcoder", kStarcoder},
    GgufPattern{"refact", kStarcoder},
    GgufPattern{"command-r", kStarcoder},
    GgufPattern{"smollm", kStarcoder},
    GgufPattern{"codeshell", kStarcoder},
    GgufPattern{"exaone", kStarcoder},
    GgufPattern{"minerva-7b", kStarcoder},
    GgufPattern{"falcon", kFalcon},
    GgufPattern{"deepseek-llm", kDeepseekLlm},
    GgufPattern{"deepseek-coder", kDeepseekCoder},
    GgufPattern{"deepseek-v3", kDeepseek3},
    GgufPattern{"bloom", kBloom},
    GgufPattern{"poro-chat", kBloom},
    GgufPattern{"gpt3-finnish", kBloom},
    GgufPattern{"viking", kViking},
};

}  // namespace

const GgufPattern* FindGgufPattern(std::string_view name) {
  for (const GgufPattern& pattern : kPatterns) {
    if (pattern.name == name) return &pattern;
  }
  return nullptr;
}

}  // namespace heddle::engine::text
