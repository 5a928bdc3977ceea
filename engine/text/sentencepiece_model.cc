// Reads SentencePiece's tokenizer.model, with a small reader of the protobuf wire format for the
// one message that is needed. Every length is checked against the remaining bytes; unknown fields
// are skipped.
// Sources: protobuf.dev/programming-guides/encoding; sentencepiece `src/sentencepiece_model.proto`.
#include <cstring>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/loaders.h"
#include "engine/text/sentencepiece_vocab.h"

namespace heddle::engine::text {
namespace {

// One field of a message.
struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t varint = 0;     // wire types 0, 1, 5
  std::string_view bytes;  // wire type 2
  float AsFloat() const {
    const auto bits = static_cast<uint32_t>(varint);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  TokenId AsId() const { return static_cast<TokenId>(static_cast<int64_t>(varint)); }
  bool AsBool() const { return varint != 0; }
};

class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& place) : rest_(bytes), place_(place) {}

  bool AtEnd() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    HEDDLE_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
    Field field;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire_type = static_cast<uint32_t>(tag & 7);
    if (field.number == 0) return Fail("field number 0");
    switch (field.wire_type) {
      case 0: {
        HEDDLE_ASSIGN_OR_RETURN(field.varint, Varint());
        return field;
      }
      case 1:
      case 5: {
        const size_t size = field.wire_type == 1 ? 8 : 4;
        if (rest_.size() < size) return Fail("a number is cut off");
        std::memcpy(&field.varint, rest_.data(), size);
        rest_.remove_prefix(size);
        return field;
      }
      case 2: {
        HEDDLE_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > rest_.size()) {
          return Fail(base::StrCat("field ", field.number, " claims ", size, " bytes, ",
                                   rest_.size(), " are left"));
        }
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      default:
        return Fail(base::StrCat("wire type ", field.wire_type));
    }
  }

 private:
  absl::Status Fail(std::string_view what) const {
    return absl::InvalidArgumentError(base::StrCat(place_, ": not a SentencePiece model: ", what));
  }

  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return Fail("the file ends inside a number");
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return Fail("a number of more than 64 bits");
  }

  std::string_view rest_;
  const std::string& place_;
};

// Calls `on_field` for each field of a message.
absl::Status ForEachField(std::string_view bytes, const std::string& place,
                          absl::FunctionRef<absl::Status(const Field&)> on_field) {
  MessageReader reader(bytes, place);
  while (!reader.AtEnd()) {
    HEDDLE_ASSIGN_OR_RETURN(const Field field, reader.Next());
    HEDDLE_RETURN_IF_ERROR(on_field(field));
  }
  return absl::OkStatus();
}

class ModelParser {
 public:
  explicit ModelParser(const std::string& place) : place_(place) {}

  absl::StatusOr<SentencePieceVocabulary> Parse(std::string_view bytes) {
    HEDDLE_RETURN_IF_ERROR(ForEachField(bytes, place_, [this](const Field& field) {
      if (field.wire_type != 2) return absl::OkStatus();
      if (field.number == 1) return Piece(field.bytes);
      if (field.number == 2) return Trainer(field.bytes);
      if (field.number == 3) return NormalizerRules(field.bytes);
      return absl::OkStatus();
    }));
    return std::move(vocabulary_);
  }

 private:
  absl::Status Piece(std::string_view bytes) {
    if (static_cast<int64_t>(vocabulary_.pieces.size()) >= kMaxVocabSize) {
      return absl::InvalidArgumentError(
          base::StrCat(place_, ": more than ", kMaxVocabSize, " pieces"));
    }
    SentencePieceVocabulary::Piece piece;
    HEDDLE_RETURN_IF_ERROR(ForEachField(bytes, place_, [&](const Field& field) {
      if (field.number == 1) piece.text = field.bytes;
      if (field.number == 2) piece.score = field.AsFloat();
      if (field.number == 3) {
        if (field.varint < 1 || field.varint > 6) {
          return absl::InvalidArgumentError(base::StrCat(place_, ": piece ",
                                                         vocabulary_.pieces.size(), " has type ",
                                                         field.varint, ", expected 1 to 6"));
        }
        piece.type = static_cast<SentencePieceVocabulary::Type>(field.varint);
      }
      return absl::OkStatus();
    }));
    const auto id = static_cast<TokenId>(vocabulary_.pieces.size());
    if (piece.type == SentencePieceVocabulary::Type::kUnknown) vocabulary_.unk_id = id;
    vocabulary_.pieces.push_back(std::move(piece));
    return absl::OkStatus();
  }

  absl::Status Trainer(std::string_view bytes) {
    uint64_t model_type = 1;
    vocabulary_.bos_id = 1;
    vocabulary_.eos_id = 2;
    HEDDLE_RETURN_IF_ERROR(ForEachField(bytes, place_, [&](const Field& field) {
      if (field.number == 3) model_type = field.varint;
      if (field.number == 24) vocabulary_.rules.treat_whitespace_as_suffix = field.AsBool();
      if (field.number == 41) vocabulary_.bos_id = field.AsId();
      if (field.number == 42) vocabulary_.eos_id = field.AsId();
      return absl::OkStatus();
    }));
    if (model_type != 1 && model_type != 2) {
      return absl::InvalidArgumentError(
          base::StrCat(place_, ": model type ", model_type, ", expected 1 (unigram) or 2 (BPE)"));
    }
    vocabulary_.is_unigram = model_type == 1;
    return absl::OkStatus();
  }

  absl::Status NormalizerRules(std::string_view bytes) {
    SentencePieceRules& rules = vocabulary_.rules;
    return ForEachField(bytes, place_, [&](const Field& field) {
      if (field.number == 2) {
        absl::StatusOr<Charsmap> map = Charsmap::Parse(field.bytes);
        if (!map.ok()) {
          return absl::InvalidArgumentError(base::StrCat(place_, ": ", map.status().message()));
        }
        rules.charsmap = *std::move(map);
      }
      if (field.number == 3) rules.add_dummy_prefix = field.AsBool();
      if (field.number == 4) rules.remove_extra_whitespaces = field.AsBool();
      if (field.number == 5) rules.escape_whitespaces = field.AsBool();
      return absl::OkStatus();
    });
  }

  const std::string& place_;
  SentencePieceVocabulary vocabulary_;
};

}  // namespace

absl::StatusOr<TokenizerParts> ParseSentencePiece(std::string_view bytes,
                                                  const std::string& place) {
  HEDDLE_ASSIGN_OR_RETURN(SentencePieceVocabulary vocabulary, ModelParser(place).Parse(bytes));
  // Models trained without BOS have -1 there, or an id that some other piece has.
  const auto is_control = [&](TokenId id) {
    return id >= 0 && static_cast<size_t>(id) < vocabulary.pieces.size() &&
           vocabulary.pieces[static_cast<size_t>(id)].type ==
               SentencePieceVocabulary::Type::kControl;
  };
  if (!is_control(vocabulary.bos_id)) vocabulary.bos_id = -1;
  if (!is_control(vocabulary.eos_id)) vocabulary.eos_id = -1;
  return BuildSentencePiece(std::move(vocabulary), place);
}

}  // namespace heddle::engine::text
