#include "engine/text/sentencepiece_vocab.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/bpe_vocabulary.h"
#include "engine/text/unigram.h"

namespace heddle::engine::text {
namespace {

using Type = SentencePieceVocabulary::Type;

bool TakesPart(Type type) {
  return type == Type::kNormal || type == Type::kUserDefined || type == Type::kUnused;
}

class Builder {
 public:
  Builder(SentencePieceVocabulary vocabulary, std::string place)
      : vocabulary_(std::move(vocabulary)), place_(std::move(place)) {}

  absl::StatusOr<TokenizerParts> Build() {
    parts_.tokens = TokenTable(static_cast<int64_t>(vocabulary_.pieces.size()) + (1 << 16));
    HEDDLE_RETURN_IF_ERROR(CheckIds());
    HEDDLE_RETURN_IF_ERROR(AddPieces());
    parts_.decoder = SentencePieceDecoder(vocabulary_.rules.add_dummy_prefix);
    parts_.tokens.Finish(parts_.decoder);
    HEDDLE_RETURN_IF_ERROR(BuildModel());
    HEDDLE_RETURN_IF_ERROR(parts_.IndexAdded());
    if (!user_defined_.empty()) parts_.normalized_added = AddedTokenFinder(user_defined_);
    parts_.normalizer = NewSentencePieceNormalizer(std::move(vocabulary_.rules));
    if (vocabulary_.bos_id >= 0) parts_.bos = vocabulary_.bos_id;
    if (vocabulary_.eos_id >= 0) parts_.eos.push_back(vocabulary_.eos_id);
    if (vocabulary_.add_bos && parts_.bos) parts_.prefix.push_back(*parts_.bos);
    if (vocabulary_.add_eos && vocabulary_.eos_id >= 0) parts_.suffix.push_back(vocabulary_.eos_id);
    return std::move(parts_);
  }

 private:
  absl::Status Fail(std::string_view what) const {
    return absl::InvalidArgumentError(base::StrCat(place_, ": ", what));
  }

  absl::Status CheckIds() const {
    const auto count = static_cast<int64_t>(vocabulary_.pieces.size());
    if (count == 0) return Fail("the vocabulary is empty");
    for (const TokenId id : {vocabulary_.unk_id, vocabulary_.bos_id, vocabulary_.eos_id}) {
      if (id < -1 || id >= count) {
        return Fail(base::StrCat("special token id ", id, " is not in [0, ", count, ")"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddPieces() {
    for (size_t i = 0; i < vocabulary_.pieces.size(); ++i) {
      const auto& piece = vocabulary_.pieces[i];
      const auto id = static_cast<TokenId>(i);
      if (!base::IsValidUtf8(piece.text)) return Fail(base::StrCat("piece ", i, " is not UTF-8"));
      if (std::isnan(piece.score))
        return Fail(base::StrCat("the score of piece ", i, " is no number"));
      if (absl::Status added = parts_.tokens.AddPossiblyTwice(id, piece.text); !added.ok()) {
        return Fail(std::string(added.message()));
      }
      AddToken(id, piece);
    }
    return absl::OkStatus();
  }

  void AddToken(TokenId id, const SentencePieceVocabulary::Piece& piece) {
    AddedToken token{.id = id, .content = piece.text};
    switch (piece.type) {
      case Type::kControl:
      case Type::kUnknown:
        token.special = true;
        parts_.added.push_back(std::move(token));
        break;
      case Type::kUserDefined:
        if (vocabulary_.user_defined_in_raw_text) {
          parts_.added.push_back(std::move(token));
        } else {
          vocabulary_.rules.user_defined.push_back(piece.text);
          user_defined_.push_back({piece.text, std::move(token)});
        }
        break;
      default:
        break;
    }
  }

  absl::Status BuildModel() {
    UnknownPolicy unknown;
    unknown.unk_id = vocabulary_.unk_id;
    unknown.fuse_unk = true;
    const bool has_bytes = std::any_of(vocabulary_.pieces.begin(), vocabulary_.pieces.end(),
                                       [](const auto& piece) { return piece.type == Type::kByte; });
    if (has_bytes) {
      unknown.byte_tokens = ByteTokens(parts_.tokens);
      if (unknown.byte_tokens.empty()) return Fail("it has byte pieces, but not all 256 of them");
    }
    if (vocabulary_.is_unigram) return BuildUnigram(std::move(unknown));
    BuildBpe(std::move(unknown));
    return absl::OkStatus();
  }

  void BuildBpe(UnknownPolicy unknown) {
    std::vector<float> scores;
    for (const auto& piece : vocabulary_.pieces) scores.push_back(piece.score);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    std::vector<RankedToken> tokens;
    for (size_t i = 0; i < vocabulary_.pieces.size(); ++i) {
      const auto& piece = vocabulary_.pieces[i];
      if (!TakesPart(piece.type) || piece.text.empty()) continue;
      const auto rank =
          std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
      tokens.push_back({piece.text, static_cast<TokenId>(i),
                        static_cast<uint32_t>(rank - scores.begin()), piece.type == Type::kUnused});
    }
    BpeVocabulary bpe;
    bpe.vocab_size = parts_.tokens.size();
    bpe.unknown = std::move(unknown);
    parts_.model = std::make_unique<Bpe>(BuildRankedBpe(tokens, std::move(bpe)));
    if (HasMetaspaceBoundaries(parts_.tokens)) parts_.pre_tokenizer = NewMetaspaceBoundaries();
  }

  absl::Status BuildUnigram(UnknownPolicy unknown) {
    // SentencePiece starts from the smallest positive float, so that scores below 0 do not count.
    float max_score = std::numeric_limits<float>::min();
    float min_score = 1e30f;
    for (const auto& piece : vocabulary_.pieces) {
      if (piece.type != Type::kNormal) continue;
      max_score = std::max(max_score, piece.score);
      min_score = std::min(min_score, piece.score);
    }
    std::vector<UnigramPiece> pieces;
    for (size_t i = 0; i < vocabulary_.pieces.size(); ++i) {
      const auto& piece = vocabulary_.pieces[i];
      const auto id = static_cast<TokenId>(i);
      if (piece.text.size() > kMaxTriedBytes) {
        return Fail(base::StrCat("piece ", i, " has ", piece.text.size(), " bytes, the limit is ",
                                 kMaxTriedBytes));
      }
      if (piece.type == Type::kNormal) pieces.push_back({piece.text, id, piece.score});
      const auto whole =
          static_cast<float>(static_cast<double>(piece.text.size()) * max_score - 0.1);
      if (piece.type == Type::kUserDefined) pieces.push_back({piece.text, id, whole});
    }
    UnigramOptions options;
    options.unknown = std::move(unknown);
    options.min_score = min_score;
    user_defined_.clear();
    parts_.model = std::make_unique<Unigram>(pieces, std::move(options));
    if (HasMetaspaceBoundaries(parts_.tokens)) parts_.pre_tokenizer = NewMetaspaceBoundaries();
    return absl::OkStatus();
  }

  SentencePieceVocabulary vocabulary_;
  std::string place_;
  TokenizerParts parts_;
  std::vector<AddedTokenFinder::Pattern> user_defined_;
};

}  // namespace

absl::StatusOr<TokenizerParts> BuildSentencePiece(SentencePieceVocabulary vocabulary,
                                                  const std::string& place) {
  return Builder(std::move(vocabulary), place).Build();
}

}  // namespace heddle::engine::text
