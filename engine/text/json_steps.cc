// The sections "normalizer", "pre_tokenizer" and "decoder" of tokenizer.json.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/loaders.h"

namespace heddle::engine::text {
namespace {

constexpr int kMaxNesting = 16;
constexpr size_t kMaxSteps = 64;  // published tokenizers have ten at most
constexpr size_t kMaxMark = 16;   // bytes of the mark that replaces a space: one code point
// Limit on the growth of a token by decoding, which makes published ones shorter.
constexpr size_t kMaxDecodedGrowth = 16;

absl::Status Unsupported(const JsonNode& node, std::string_view kind, std::string_view type,
                         std::string_view known) {
  return absl::InvalidArgumentError(
      base::StrCat(node.place(), ": ", kind, " '", type, "' is not supported; known are ", known));
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  bool is_regex = false;
  std::string text;

  absl::StatusOr<Regex> Compile() const {
    return is_regex ? Regex::Compile(text) : Regex::Literal(text);
  }
};

absl::StatusOr<Pattern> ParsePattern(const JsonNode& node) {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode pattern, node.Get("pattern"));
  if (const auto text = pattern.Find("String")) {
    HEDDLE_ASSIGN_OR_RETURN(std::string value, text->AsString());
    return Pattern{false, std::move(value)};
  }
  if (const auto text = pattern.Find("Regex")) {
    HEDDLE_ASSIGN_OR_RETURN(std::string value, text->AsString());
    return Pattern{true, std::move(value)};
  }
  return pattern.Wrong("{\"String\": ...} or {\"Regex\": ...}");
}

absl::Status PlacedAt(const JsonNode& node, const absl::Status& status) {
  return absl::Status(status.code(), base::StrCat(node.place(), ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParseReplace(const JsonNode& node) {
  HEDDLE_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(node));
  HEDDLE_ASSIGN_OR_RETURN(std::string content, node.String("content"));
  if (!pattern.is_regex) return NewReplace(pattern.text, std::move(content));
  absl::StatusOr<Regex> regex = pattern.Compile();
  if (!regex.ok()) return PlacedAt(node, regex.status());
  return NewReplaceMatches(*std::move(regex), std::move(content));
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParsePrecompiled(const JsonNode& node) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string encoded, node.String("precompiled_charsmap"));
  std::string blob;
  if (!absl::Base64Unescape(encoded, &blob)) return node.Wrong("base64 in precompiled_charsmap");
  absl::StatusOr<Charsmap> map = Charsmap::Parse(blob);
  if (!map.ok()) return PlacedAt(node, map.status());
  return NewPrecompiled(*std::move(map));
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParseBertNormalizer(const JsonNode& node) {
  BertRules rules;
  HEDDLE_ASSIGN_OR_RETURN(rules.cleans, node.BoolOr("clean_text", true));
  HEDDLE_ASSIGN_OR_RETURN(rules.separates_ideographs, node.BoolOr("handle_chinese_chars", true));
  HEDDLE_ASSIGN_OR_RETURN(rules.lowercases, node.BoolOr("lowercase", true));
  HEDDLE_ASSIGN_OR_RETURN(rules.removes_accents, node.BoolOr("strip_accents", rules.lowercases));
  return NewBertNormalizer(rules);
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizerAt(const JsonNode& node, int depth) {
  if (depth > kMaxNesting) return node.Wrong("at most 16 nested sequences");
  HEDDLE_ASSIGN_OR_RETURN(const std::string type, node.Type());
  if (type == "Sequence") {
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, node.Array("normalizers"));
    std::vector<std::unique_ptr<Normalizer>> steps;
    if (nodes.size() > kMaxSteps) return node.Wrong("at most 64 normalizers");
    for (const JsonNode& step : nodes) {
      HEDDLE_ASSIGN_OR_RETURN(auto normalizer, ParseNormalizerAt(step, depth + 1));
      steps.push_back(std::move(normalizer));
    }
    return NewNormalizerSequence(std::move(steps));
  }
  if (type == "NFC") return NewUnicodeNormalizer(NormalForm::kNfc);
  if (type == "NFD") return NewUnicodeNormalizer(NormalForm::kNfd);
  if (type == "NFKC") return NewUnicodeNormalizer(NormalForm::kNfkc);
  if (type == "NFKD") return NewUnicodeNormalizer(NormalForm::kNfkd);
  if (type == "Lowercase") return NewLowercase();
  if (type == "StripAccents") return NewRemoveMarks();
  if (type == "BertNormalizer") return ParseBertNormalizer(node);
  if (type == "Replace") return ParseReplace(node);
  if (type == "Precompiled") return ParsePrecompiled(node);
  if (type == "Prepend") {
    HEDDLE_ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
    return NewPrepend(std::move(prefix));
  }
  if (type == "Strip") {
    HEDDLE_ASSIGN_OR_RETURN(const bool left, node.BoolOr("strip_left", true));
    HEDDLE_ASSIGN_OR_RETURN(const bool right, node.BoolOr("strip_right", true));
    return NewStrip(left, right);
  }
  return Unsupported(node, "normalizer", type,
                     "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, "
                     "Precompiled, BertNormalizer, Sequence");
}

absl::StatusOr<SplitBehavior> ParseBehavior(const JsonNode& node, std::string_view absent) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, node.StringOr("behavior", absent));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Unsupported(node, "behavior", name,
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> ParseSplit(const JsonNode& node) {
  HEDDLE_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(node));
  HEDDLE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(node, ""));
  HEDDLE_ASSIGN_OR_RETURN(const bool invert, node.BoolOr("invert", false));
  // A scanner's matches have no gaps, so keeping the matches and dropping the gaps are the same.
  const bool keeps_matches =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (pattern.is_regex && keeps_matches) {
    if (const auto spec = FindScanner(pattern.text)) return NewScannerSplit(*spec);
  }
  absl::StatusOr<Regex> regex = pattern.Compile();
  if (!regex.ok()) return PlacedAt(node, regex.status());
  return NewRegexSplit(*std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> ParseMetaspace(const JsonNode& node) {
  HEDDLE_ASSIGN_OR_RETURN(std::string replacement, node.StringOr("replacement", kMetaspace));
  // Older files have add_prefix_space instead of prepend_scheme.
  HEDDLE_ASSIGN_OR_RETURN(const bool prefix_space, node.BoolOr("add_prefix_space", true));
  HEDDLE_ASSIGN_OR_RETURN(const std::string scheme,
                          node.StringOr("prepend_scheme", prefix_space ? "always" : "never"));
  HEDDLE_ASSIGN_OR_RETURN(const bool split, node.BoolOr("split", true));
  if (replacement.empty() || replacement.size() > kMaxMark) {
    return node.Wrong("a replacement of one character");
  }
  const Prepend prepend = scheme == "always"  ? Prepend::kAlways
                          : scheme == "first" ? Prepend::kFirst
                                              : Prepend::kNever;
  if (prepend == Prepend::kNever && scheme != "never") {
    return Unsupported(node, "prepend_scheme", scheme, "always, first, never");
  }
  return NewMetaspace(std::move(replacement), prepend, split);
}

class PreTokenizerParser {
 public:
  // Appends the stages of `node` to `*stages`.
  absl::Status Parse(const JsonNode& node, int depth) {
    if (depth > kMaxNesting) return node.Wrong("at most 16 nested sequences");
    HEDDLE_ASSIGN_OR_RETURN(const std::string type, node.Type());
    if (type == "Sequence") {
      HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, node.Array("pretokenizers"));
      for (const JsonNode& stage : nodes) HEDDLE_RETURN_IF_ERROR(Parse(stage, depth + 1));
      return absl::OkStatus();
    }
    if (type == "ByteLevel") return ParseByteLevel(node);
    if (type == "Metaspace" && byte_level_) return node.Wrong("no Metaspace after ByteLevel");
    absl::StatusOr<std::unique_ptr<PreTokenizer>> stage = ParseStage(node, type);
    if (!stage.ok()) return stage.status();
    if (*stage != nullptr) stages().push_back(*std::move(stage));
    if (stages().size() > kMaxSteps) return node.Wrong("at most 64 pre-tokenizers");
    return absl::OkStatus();
  }

  ParsedPreTokenizer Finish() {
    if (!on_alphabet_.empty()) {
      stages_.push_back(NewOnByteAlphabet(NewSequence(std::move(on_alphabet_))));
    }
    ParsedPreTokenizer parsed;
    parsed.byte_level = byte_level_;
    if (!stages_.empty()) parsed.pre_tokenizer = NewSequence(std::move(stages_));
    return parsed;
  }

 private:
  // Stages behind ByteLevel see the byte alphabet.
  std::vector<std::unique_ptr<PreTokenizer>>& stages() {
    return byte_level_ ? on_alphabet_ : stages_;
  }

  absl::Status ParseByteLevel(const JsonNode& node) {
    if (byte_level_) return node.Wrong("ByteLevel once");
    HEDDLE_ASSIGN_OR_RETURN(const bool prefix_space, node.BoolOr("add_prefix_space", true));
    HEDDLE_ASSIGN_OR_RETURN(const bool use_regex, node.BoolOr("use_regex", true));
    if (prefix_space) stages_.push_back(NewPrefixSpace());
    if (use_regex) stages_.push_back(NewScannerSplit(*FindScanner(kGpt2Pattern)));
    byte_level_ = true;
    return absl::OkStatus();
  }

  static absl::StatusOr<std::unique_ptr<PreTokenizer>> ParseStage(const JsonNode& node,
                                                                  const std::string& type) {
    if (type == "Split") return ParseSplit(node);
    if (type == "Metaspace") return ParseMetaspace(node);
    if (type == "Digits") {
      HEDDLE_ASSIGN_OR_RETURN(const bool individual, node.BoolOr("individual_digits", false));
      return NewCharSplit(CharKind::kDigit,
                          individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
    }
    if (type == "Punctuation") {
      HEDDLE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(node, "Isolated"));
      return NewCharSplit(CharKind::kPunctuation, behavior);
    }
    if (type == "WhitespaceSplit") {
      return NewCharSplit(CharKind::kWhiteSpace, SplitBehavior::kRemoved);
    }
    if (type == "BertPreTokenizer") {
      std::vector<std::unique_ptr<PreTokenizer>> both;
      both.push_back(NewCharSplit(CharKind::kWhiteSpace, SplitBehavior::kRemoved));
      both.push_back(NewCharSplit(CharKind::kPunctuation, SplitBehavior::kIsolated));
      return NewSequence(std::move(both));
    }
    if (type == "Whitespace") {
      HEDDLE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile("\\w+|[^\\w\\s]+"));
      return NewRegexSplit(std::move(regex), SplitBehavior::kRemoved, /*invert=*/true);
    }
    if (type == "CharDelimiterSplit") {
      HEDDLE_ASSIGN_OR_RETURN(const std::string delimiter, node.String("delimiter"));
      HEDDLE_ASSIGN_OR_RETURN(Regex regex, Regex::Literal(delimiter));
      return NewRegexSplit(std::move(regex), SplitBehavior::kRemoved, /*invert=*/false);
    }
    return Unsupported(node, "pre-tokenizer", type,
                       "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, Sequence");
  }

  std::vector<std::unique_ptr<PreTokenizer>> stages_;
  std::vector<std::unique_ptr<PreTokenizer>> on_alphabet_;
  bool byte_level_ = false;
};

class DecoderParser {
 public:
  absl::Status Parse(const JsonNode& node, int depth) {
    if (depth > kMaxNesting) return node.Wrong("at most 16 nested sequences");
    HEDDLE_ASSIGN_OR_RETURN(const std::string type, node.Type());
    if (type == "Sequence") {
      HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, node.Array("decoders"));
      for (const JsonNode& step : nodes) HEDDLE_RETURN_IF_ERROR(Parse(step, depth + 1));
      return absl::OkStatus();
    }
    if (type == "Fuse") {
      fused_ = true;
      return absl::OkStatus();
    }
    if (type == "Strip") return ParseStrip(node);
    if (fused_) return node.Wrong("only Strip after Fuse");
    if (type == "ByteLevel") return Step({DecodeStep::Kind::kByteLevel, "", ""});
    if (type == "ByteFallback") return Step({DecodeStep::Kind::kByteFallback, "", ""});
    if (type == "Replace") return ParseReplaceStep(node);
    if (type == "Metaspace") return ParseMetaspaceStep(node);
    if (type == "WordPiece") return ParseWordPieceStep(node);
    return Unsupported(
        node, "decoder", type,
        "ByteLevel, ByteFallback, Replace, Metaspace, WordPiece, Fuse, Strip, Sequence");
  }

  TokenDecoder Finish() { return std::move(decoder_); }

 private:
  absl::Status Step(DecodeStep step) {
    decoder_.steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  // Reads a replacing step; all of them together may make a token kMaxDecodedGrowth times as long.
  absl::Status Replacement(const JsonNode& node, std::string from, std::string to) {
    growth_ *= std::max<size_t>(1, (to.size() + from.size() - 1) / from.size());
    if (growth_ > kMaxDecodedGrowth || decoder_.steps.size() >= kMaxSteps) {
      return node.Wrong("decoders that make a token no more than 16 times as long");
    }
    return Step({DecodeStep::Kind::kReplace, std::move(from), std::move(to)});
  }

  static absl::StatusOr<int32_t> Count(const JsonNode& node, std::string_view key) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t count, node.Int(key));
    if (count < 0 || count > INT32_MAX) return node.Wrong("counts of 0 or more");
    return static_cast<int32_t>(count);
  }

  absl::Status ParseStrip(const JsonNode& node) {
    HEDDLE_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    HEDDLE_ASSIGN_OR_RETURN(const int32_t start, Count(node, "start"));
    HEDDLE_ASSIGN_OR_RETURN(const int32_t stop, Count(node, "stop"));
    if (content.empty()) return node.Wrong("content to strip");
    if (!fused_) return Step({DecodeStep::Kind::kStrip, std::move(content), "", start, stop});
    if (stop != 0 || decoder_.strip_left_count != 0) {
      return node.Wrong("one Strip after Fuse, of the start of the text");
    }
    decoder_.strip_left = std::move(content);
    decoder_.strip_left_count = start;
    return absl::OkStatus();
  }

  absl::Status ParseReplaceStep(const JsonNode& node) {
    HEDDLE_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(node));
    HEDDLE_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    if (pattern.is_regex || pattern.text.empty()) return node.Wrong("a String pattern");
    return Replacement(node, pattern.text, std::move(content));
  }

  absl::Status ParseMetaspaceStep(const JsonNode& node) {
    HEDDLE_ASSIGN_OR_RETURN(std::string replacement, node.StringOr("replacement", kMetaspace));
    HEDDLE_ASSIGN_OR_RETURN(const bool prefix_space, node.BoolOr("add_prefix_space", true));
    HEDDLE_ASSIGN_OR_RETURN(const std::string scheme,
                            node.StringOr("prepend_scheme", prefix_space ? "always" : "never"));
    if (replacement.empty() || replacement.size() > kMaxMark) {
      return node.Wrong("a replacement of one character");
    }
    if (scheme != "never") decoder_.drop_in_first = replacement;
    return Replacement(node, std::move(replacement), " ");
  }

  absl::Status ParseWordPieceStep(const JsonNode& node) {
    HEDDLE_ASSIGN_OR_RETURN(std::string prefix, node.StringOr("prefix", "##"));
    HEDDLE_ASSIGN_OR_RETURN(const bool cleanup, node.BoolOr("cleanup", true));
    if (prefix.empty() || prefix.size() > kMaxMark) return node.Wrong("a prefix like ##");
    decoder_.strip_left.assign(1, ' ');
    decoder_.strip_left_count = 1;
    return Step({DecodeStep::Kind::kWordPiece, std::move(prefix), "", cleanup ? 1 : 0});
  }

  TokenDecoder decoder_;
  size_t growth_ = 1;
  bool fused_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonNode& node) {
  return ParseNormalizerAt(node, 0);
}

absl::StatusOr<ParsedPreTokenizer> ParsePreTokenizer(const JsonNode& node) {
  PreTokenizerParser parser;
  HEDDLE_RETURN_IF_ERROR(parser.Parse(node, 0));
  return parser.Finish();
}

absl::StatusOr<TokenDecoder> ParseDecoder(const JsonNode& node) {
  DecoderParser parser;
  HEDDLE_RETURN_IF_ERROR(parser.Parse(node, 0));
  return parser.Finish();
}

}  // namespace heddle::engine::text
