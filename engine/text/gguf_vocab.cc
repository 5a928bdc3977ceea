// Vocabularies in GGUF files: the keys `tokenizer.ggml.*`.
// Source: the GGUF specification, section "Tokenizer"; llama.cpp for how each kind splits and
// merges.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/files/gguf.h"
#include "engine/text/bpe_vocabulary.h"
#include "engine/text/gguf_patterns.h"
#include "engine/text/gguf_wordpiece.h"
#include "engine/text/loaders.h"
#include "engine/text/sentencepiece_vocab.h"
#include "engine/text/world_vocabulary.h"

namespace heddle::engine::text {
namespace {

using Type = SentencePieceVocabulary::Type;

// Texts of the token that ends a turn, for files that do not give its id.
constexpr std::array<std::string_view, 7> kEndOfTurn = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|return|>", "<turn|>"};

constexpr std::string_view kSeparator = "tokenizer.ggml.seperator_token_id";  // spelt so

// RWKV's files have this name in the place of a template: llama.cpp has a built-in one of it. No
// other of its converters writes a name.
constexpr std::string_view kWorldName = "rwkv-world";
constexpr std::string_view kWorldTemplate =
    "{% for message in messages %}"
    "{% if message.role in ['system', 'user', 'assistant'] %}"
    "{{ message.role | capitalize + ': ' + (message.content or '') | trim + '\\n\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}";

// The entries that every kind of vocabulary has.
struct Entries {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;  // empty: all normal
  Type TypeOf(size_t i) const {
    return types.empty() ? Type::kNormal : static_cast<Type>(types[i]);
  }
};

class VocabularyReader {
 public:
  explicit VocabularyReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<TokenizerParts> Read() {
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view kind, file_.String("tokenizer.ggml.model"));
    HEDDLE_RETURN_IF_ERROR(ReadEntries());
    TokenizerParts parts;
    if (kind == "gpt2") {
      HEDDLE_ASSIGN_OR_RETURN(parts, ReadBpe());
    } else if (kind == "llama" || kind == "t5") {
      HEDDLE_ASSIGN_OR_RETURN(parts, ReadSentencePiece(kind == "t5"));
    } else if (kind == "gemma4") {
      HEDDLE_ASSIGN_OR_RETURN(parts, ReadMetaspaceBpe());
    } else if (kind == "bert") {
      HEDDLE_ASSIGN_OR_RETURN(parts, ReadWordPiece());
    } else if (kind == "rwkv") {
      HEDDLE_ASSIGN_OR_RETURN(parts, ReadWorld());
    } else {
      return Fail(base::StrCat("tokenizer.ggml.model is '", kind,
                               "', expected gpt2, llama, t5, gemma4, bert or rwkv"));
    }
    HEDDLE_RETURN_IF_ERROR(ReadEnds(&parts));
    HEDDLE_RETURN_IF_ERROR(ReadPair(&parts));
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view chat_template,
                            file_.StringOr("tokenizer.chat_template", ""));
    parts.chat_template = chat_template == kWorldName ? kWorldTemplate : chat_template;
    return parts;
  }

 private:
  absl::Status Fail(std::string_view what) const {
    return absl::InvalidArgumentError(base::StrCat(file_.name(), ": ", what));
  }

  absl::Status ReadEntries() {
    HEDDLE_ASSIGN_OR_RETURN(entries_.tokens, file_.Strings("tokenizer.ggml.tokens"));
    if (entries_.tokens.empty()) return Fail("tokenizer.ggml.tokens is empty");
    if (static_cast<int64_t>(entries_.tokens.size()) > kMaxVocabSize) {
      return Fail(base::StrCat("tokenizer.ggml.tokens has ", entries_.tokens.size(),
                               " entries, the limit is ", kMaxVocabSize));
    }
    for (size_t i = 0; i < entries_.tokens.size(); ++i) {
      if (!base::IsValidUtf8(entries_.tokens[i]))
        return Fail(base::StrCat("token ", i, " is not UTF-8"));
    }
    if (!file_.Has("tokenizer.ggml.token_type")) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(entries_.types, file_.Ints("tokenizer.ggml.token_type"));
    if (entries_.types.size() != entries_.tokens.size()) {
      return Fail(base::StrCat("tokenizer.ggml.token_type has ", entries_.types.size(),
                               " entries for ", entries_.tokens.size(), " tokens"));
    }
    for (const int64_t type : entries_.types) {
      if (type < 0 || type > 6) {
        return Fail(base::StrCat("token type ", type, ", expected 0 to 6"));
      }
    }
    return absl::OkStatus();
  }

  // -1 if the file does not say.
  absl::StatusOr<TokenId> ReadId(std::string_view key, int64_t absent = -1) const {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t id, file_.IntOr(key, absent));
    // Exporters write 2^32 - 1 for no id.
    if (id == UINT32_MAX) return -1;
    if (id < -1 || id >= static_cast<int64_t>(entries_.tokens.size())) {
      return Fail(
          base::StrCat(key, " is ", id, ", expected an id in [0, ", entries_.tokens.size(), ")"));
    }
    return static_cast<TokenId>(id);
  }

  // Normal tokens are bytes as Python writes them; the first token ends texts.
  absl::StatusOr<TokenizerParts> ReadWorld() const {
    std::vector<WorldToken> tokens;
    for (size_t i = 1; i < entries_.tokens.size(); ++i) {
      if (entries_.TypeOf(i) != Type::kNormal) continue;
      std::optional<std::string> bytes = Unescape(entries_.tokens[i], /*is_text=*/false);
      if (!bytes.has_value())
        return Fail(base::StrCat("token ", i, " has an escape that is not complete"));
      tokens.push_back({static_cast<TokenId>(i), *std::move(bytes)});
    }
    HEDDLE_ASSIGN_OR_RETURN(
        TokenizerParts parts,
        BuildWorld(tokens, static_cast<int64_t>(entries_.tokens.size()), file_.name()));
    HEDDLE_RETURN_IF_ERROR(parts.AddRaw(
        {{.id = 0, .content = std::string(entries_.tokens.front()), .special = true}}));
    return parts;
  }

  absl::StatusOr<TokenizerParts> ReadWordPiece() const {
    WordPieceIds ids;
    HEDDLE_ASSIGN_OR_RETURN(ids.begin, ReadId("tokenizer.ggml.bos_token_id"));
    if (ids.begin < 0) {
      HEDDLE_ASSIGN_OR_RETURN(ids.begin, ReadId("tokenizer.ggml.cls_token_id"));
    }
    HEDDLE_ASSIGN_OR_RETURN(ids.end, ReadId(kSeparator));
    HEDDLE_ASSIGN_OR_RETURN(ids.unknown, ReadId("tokenizer.ggml.unknown_token_id"));
    std::vector<WordPieceEntry> entries;
    for (size_t i = 0; i < entries_.tokens.size(); ++i) {
      const Type type = entries_.TypeOf(i);
      entries.push_back({.text = entries_.tokens[i],
                         .is_special = type == Type::kControl || type == Type::kUnknown});
    }
    return BuildGgufWordPiece(entries, ids, file_.name());
  }

  // The order of two texts and what is around them: a template of a reranker that is a decoder, or
  // what an encoder's tokens say. RoBERTa puts two tokens between the texts, the others one.
  absl::Status ReadPair(TokenizerParts* parts) const {
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view text,
                            file_.StringOr("tokenizer.chat_template.rerank", ""));
    if (!text.empty()) {
      parts->pair.is_known = true;
      parts->pair.text = text;
      return absl::OkStatus();
    }
    constexpr std::string_view kAddSeparator = "tokenizer.ggml.add_sep_token";
    constexpr std::string_view kTypes = "tokenizer.ggml.token_type_count";
    const bool is_encoder = file_.Has(kAddSeparator) || file_.Has(kTypes);
    if (!is_encoder || parts->prefix.size() != 1 || parts->suffix.size() != 1) {
      return absl::OkStatus();
    }
    HEDDLE_ASSIGN_OR_RETURN(const bool adds, file_.BoolOr(kAddSeparator, false));
    HEDDLE_ASSIGN_OR_RETURN(const int64_t n_types, file_.IntOr(kTypes, 0));
    const TokenId end = parts->suffix.front();
    parts->pair = {.is_known = true,
                   .before = parts->prefix,
                   .between = {end},
                   .behind = {end},
                   .types_differ = n_types > 1};
    if (adds && parts->tokens.Text(end) == "</s>") parts->pair.between.push_back(end);
    return absl::OkStatus();
  }

  absl::StatusOr<TokenizerParts> ReadSentencePiece(bool is_unigram) const {
    std::vector<float> scores;
    HEDDLE_ASSIGN_OR_RETURN(scores, file_.Floats("tokenizer.ggml.scores"));
    if (scores.size() != entries_.tokens.size()) {
      return Fail(base::StrCat("tokenizer.ggml.scores has ", scores.size(), " entries for ",
                               entries_.tokens.size(), " tokens"));
    }
    SentencePieceVocabulary vocabulary;
    vocabulary.is_unigram = is_unigram;
    vocabulary.user_defined_in_raw_text = true;
    for (size_t i = 0; i < scores.size(); ++i) {
      vocabulary.pieces.push_back({std::string(entries_.tokens[i]), scores[i], entries_.TypeOf(i)});
    }
    const bool is_llama = !is_unigram;
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.unk_id,
                            ReadId("tokenizer.ggml.unknown_token_id", is_llama ? 0 : 2));
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.bos_id,
                            ReadId("tokenizer.ggml.bos_token_id", is_llama ? 1 : -1));
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.eos_id,
                            ReadId("tokenizer.ggml.eos_token_id", is_llama ? 2 : 1));
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.add_bos,
                            file_.BoolOr("tokenizer.ggml.add_bos_token", is_llama));
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.add_eos,
                            file_.BoolOr("tokenizer.ggml.add_eos_token", !is_llama));
    HEDDLE_RETURN_IF_ERROR(ReadRules(is_unigram, &vocabulary.rules));
    HEDDLE_ASSIGN_OR_RETURN(TokenizerParts parts,
                            BuildSentencePiece(std::move(vocabulary), file_.name()));
    HEDDLE_RETURN_IF_ERROR(RestoreStripping(&parts));
    return parts;
  }

  absl::Status ReadRules(bool is_unigram, SentencePieceRules* rules) const {
    HEDDLE_ASSIGN_OR_RETURN(rules->add_dummy_prefix,
                            file_.BoolOr("tokenizer.ggml.add_space_prefix", true));
    HEDDLE_ASSIGN_OR_RETURN(rules->remove_extra_whitespaces,
                            file_.BoolOr("tokenizer.ggml.remove_extra_whitespaces", is_unigram));
    constexpr std::string_view kCharsmap = "tokenizer.ggml.precompiled_charsmap";
    if (!is_unigram || !file_.Has(kCharsmap)) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, file_.Ints(kCharsmap));
    std::string blob;
    for (const int64_t byte : bytes) blob.push_back(static_cast<char>(byte));
    absl::StatusOr<Charsmap> map = Charsmap::Parse(blob);
    if (!map.ok()) return Fail(std::string(map.status().message()));
    rules->charsmap = *std::move(map);
    return absl::OkStatus();
  }

  // The format cannot express that a token strips the white space behind it, which Phi-3's control
  // tokens do; only its name tells.
  absl::Status RestoreStripping(TokenizerParts* parts) const {
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view name, file_.StringOr("general.name", ""));
    const std::string lower = absl::AsciiStrToLower(base::AbslView(name));
    if (lower.find("phi-3") == std::string::npos && lower.find("phi3") == std::string::npos) {
      return absl::OkStatus();
    }
    for (AddedToken& token : parts->added) {
      token.rstrip =
          token.content != "<unk>" && token.content != "<s>" && token.content != "<|endoftext|>";
    }
    return parts->IndexAdded();
  }

  absl::StatusOr<TokenizerParts> ReadBpe() const {
    TokenizerParts parts;
    HEDDLE_ASSIGN_OR_RETURN(const std::string_view name,
                            file_.StringOr("tokenizer.ggml.pre", "default"));
    const GgufPattern* pattern = FindGgufPattern(name);
    if (pattern == nullptr) {
      return Fail(base::StrCat("tokenizer.ggml.pre is '", name,
                               "', which names no splitting pattern known here"));
    }
    HEDDLE_ASSIGN_OR_RETURN(parts.pre_tokenizer, NewSplits(*pattern));
    parts.byte_level = true;
    parts.decoder = ByteLevelDecoder();
    HEDDLE_RETURN_IF_ERROR(AddTokens(&parts));
    parts.tokens.Finish(parts.decoder);
    HEDDLE_RETURN_IF_ERROR(parts.IndexAdded());
    BpeVocabulary vocabulary;
    vocabulary.vocab_size = parts.tokens.size();
    vocabulary.byte_level = true;
    HEDDLE_RETURN_IF_ERROR(BuildBpe(std::move(vocabulary), pattern->ignore_merges, &parts));
    HEDDLE_RETURN_IF_ERROR(ReadAround(pattern->add_bos, &parts));
    return parts;
  }

  // Merges by rank over code points with U+2581 for spaces, and bytes where nothing else fits
  // (Gemma 4).
  absl::StatusOr<TokenizerParts> ReadMetaspaceBpe() const {
    TokenizerParts parts;
    parts.normalizer = NewReplace(" ", std::string(kMetaspace));
    parts.decoder = SentencePieceDecoder(/*strip_space=*/false);
    HEDDLE_RETURN_IF_ERROR(AddTokens(&parts));
    parts.tokens.Finish(parts.decoder);
    HEDDLE_RETURN_IF_ERROR(parts.IndexAdded());
    if (HasMetaspaceBoundaries(parts.tokens)) parts.pre_tokenizer = NewMetaspaceBoundaries();
    BpeVocabulary vocabulary;
    vocabulary.vocab_size = parts.tokens.size();
    vocabulary.unknown.byte_tokens = ByteTokens(parts.tokens);
    vocabulary.unknown.fuse_unk = true;
    HEDDLE_ASSIGN_OR_RETURN(vocabulary.unknown.unk_id, ReadId("tokenizer.ggml.unknown_token_id"));
    HEDDLE_RETURN_IF_ERROR(BuildBpe(std::move(vocabulary), /*ignore_merges=*/false, &parts));
    HEDDLE_RETURN_IF_ERROR(ReadAround(/*adds_bos=*/true, &parts));
    return parts;
  }

  static absl::StatusOr<std::unique_ptr<PreTokenizer>> NewSplits(const GgufPattern& pattern) {
    std::vector<std::unique_ptr<PreTokenizer>> stages;
    for (const std::string_view split : pattern.splits) {
      if (const auto scanner = FindScanner(split)) {
        stages.push_back(NewScannerSplit(*scanner));
      } else {
        HEDDLE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(split));
        stages.push_back(NewRegexSplit(std::move(regex), SplitBehavior::kIsolated, false));
      }
    }
    return NewSequence(std::move(stages));
  }

  absl::Status AddTokens(TokenizerParts* parts) const {
    parts->tokens = TokenTable(static_cast<int64_t>(entries_.tokens.size()));
    for (size_t i = 0; i < entries_.tokens.size(); ++i) {
      const std::string_view text = entries_.tokens[i];
      const auto id = static_cast<TokenId>(i);
      HEDDLE_RETURN_IF_ERROR(parts->tokens.AddPossiblyTwice(id, text));
      const Type type = entries_.TypeOf(i);
      const bool special = type == Type::kControl || type == Type::kUnknown;
      if (special || type == Type::kUserDefined) {
        parts->added.push_back({.id = id, .content = std::string(text), .special = special});
      }
    }
    return absl::OkStatus();
  }

  absl::Status BuildBpe(BpeVocabulary vocabulary, bool ignore_merges, TokenizerParts* parts) const {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string_view> lines,
                            file_.Strings("tokenizer.ggml.merges"));
    MergeTable merges(lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const size_t space = lines[i].find(' ', 1);
      if (space == std::string_view::npos) {
        return Fail(base::StrCat("tokenizer.ggml.merges[", i,
                                 "]: expected two tokens with a space between them"));
      }
      const absl::Status added =
          AddMerge(parts->tokens, lines[i].substr(0, space), lines[i].substr(space + 1),
                   static_cast<uint32_t>(i), &merges);
      if (!added.ok()) {
        return Fail(base::StrCat("tokenizer.ggml.merges[", i, "]: ", added.message()));
      }
    }
    IndexSymbols(parts->tokens, &vocabulary);
    if (ignore_merges) IndexWholeWords(parts->tokens, &vocabulary);
    parts->model = std::make_unique<Bpe>(std::move(vocabulary), std::move(merges));
    return absl::OkStatus();
  }

  // `adds_bos`: where the file does not say.
  absl::Status ReadAround(bool adds_bos, TokenizerParts* parts) const {
    HEDDLE_ASSIGN_OR_RETURN(const TokenId bos, ReadId("tokenizer.ggml.bos_token_id"));
    HEDDLE_ASSIGN_OR_RETURN(const TokenId eos, ReadId("tokenizer.ggml.eos_token_id"));
    HEDDLE_ASSIGN_OR_RETURN(const bool add_bos,
                            file_.BoolOr("tokenizer.ggml.add_bos_token", adds_bos));
    HEDDLE_ASSIGN_OR_RETURN(const bool add_eos,
                            file_.BoolOr("tokenizer.ggml.add_eos_token", false));
    if (bos >= 0) parts->bos = bos;
    if (eos >= 0) parts->eos.push_back(eos);
    if (add_bos && bos >= 0) parts->prefix.push_back(bos);
    if (add_eos && eos >= 0) parts->suffix.push_back(eos);
    return absl::OkStatus();
  }

  // Besides EOS, a token that ends a turn ends an answer.
  absl::Status ReadEnds(TokenizerParts* parts) const {
    for (const std::string_view key :
         {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      HEDDLE_ASSIGN_OR_RETURN(const TokenId id, ReadId(key));
      if (id >= 0) AddEnd(id, parts);
    }
    for (const std::string_view name : kEndOfTurn) {
      const auto id = parts->tokens.Find(name);
      if (id && parts->tokens.IsSpecial(*id)) AddEnd(*id, parts);
    }
    return absl::OkStatus();
  }

  static void AddEnd(TokenId id, TokenizerParts* parts) {
    if (std::find(parts->eos.begin(), parts->eos.end(), id) == parts->eos.end()) {
      parts->eos.push_back(id);
    }
  }

  const GgufFile& file_;
  Entries entries_;
};

}  // namespace

absl::StatusOr<TokenizerParts> ParseGgufVocabulary(const GgufFile& file) {
  return VocabularyReader(file).Read();
}

}  // namespace heddle::engine::text
