// Finds the tokenizer of a model folder and picks the reader.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/gguf.h"
#include "engine/files/json_file.h"
#include "engine/files/mapped_file.h"
#include "engine/text/loaders.h"
#include "engine/text/regex_scanners.h"
#include "engine/text/world_vocabulary.h"

namespace heddle::engine::text {
namespace {

namespace fs = std::filesystem;

// The largest published tokenizer.model has 6 MB, the largest tiktoken file 4 MB.
constexpr size_t kMaxVocabularyBytes = 256 << 20;

absl::StatusOr<MappedFile> OpenVocabulary(const fs::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > kMaxVocabularyBytes) {
    return absl::InvalidArgumentError(base::StrCat(path.string(), ": vocabulary of ",
                                                   file.bytes().size(), " bytes, the limit is ",
                                                   kMaxVocabularyBytes));
  }
  return file;
}

std::string_view AsText(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Meta and others name their tiktoken ranks tokenizer.model. Such a file begins with base64; a
// SentencePiece model begins with the tag of its first piece, a line feed.
bool LooksLikeTiktoken(std::string_view bytes) {
  return !bytes.empty() && (absl::ascii_isalnum(static_cast<unsigned char>(bytes[0])) ||
                            bytes[0] == '+' || bytes[0] == '/');
}

// RWKV's vocabularies are named by their date, such as rwkv_vocab_v20230424.txt.
bool IsWorld(const fs::path& path) {
  return path.extension() == ".txt" && path.filename().string().starts_with("rwkv_vocab");
}

absl::Status NoTokenizer(const fs::path& path, std::string_view found) {
  return absl::InvalidArgumentError(
      base::StrCat(path.string(),
                   " is no tokenizer: expected tokenizer.json, a SentencePiece model, tiktoken's ",
                   "ranks, RWKV's rwkv_vocab*.txt or a GGUF file, found ", found));
}

absl::StatusOr<TokenizerParts> ParseRanks(std::string_view text, const fs::path& path) {
  return ParseTiktoken(text, kCl100kPattern, path.string());
}

absl::StatusOr<TokenizerParts> LoadFile(const fs::path& path) {
  if (path.extension() == ".json") {
    HEDDLE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
    return ParseTokenizerJson(document, path.string());
  }
  if (path.extension() == ".gguf") {
    HEDDLE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    return ParseGgufVocabulary(file);
  }
  HEDDLE_ASSIGN_OR_RETURN(const MappedFile file, OpenVocabulary(path));
  const std::string_view text = AsText(file);
  if (IsWorld(path)) return ParseWorldVocabulary(text, path.string());
  if (path.extension() == ".tiktoken" || LooksLikeTiktoken(text)) return ParseRanks(text, path);
  if (text.empty()) return NoTokenizer(path, "an empty file");
  if (text[0] != '\n') return NoTokenizer(path, base::Quote(text.substr(0, 16)));
  return ParseSentencePiece(AsText(file), path.string());
}

// The only such file of `folder`; empty if there is none or several.
fs::path OnlyFile(const fs::path& folder, absl::FunctionRef<bool(const fs::path&)> is_wanted) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_wanted(entry.path())) found.push_back(entry.path());
  }
  return found.size() == 1 ? found[0] : fs::path();
}

absl::StatusOr<fs::path> FindInFolder(const fs::path& folder) {
  std::error_code error;
  for (const std::string_view name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name, error)) return folder / name;
  }
  if (fs::path path = OnlyFile(folder, IsWorld); !path.empty()) return path;
  for (const std::string_view extension : {".tiktoken", ".gguf"}) {
    const auto has_extension = [=](const fs::path& path) { return path.extension() == extension; };
    if (fs::path path = OnlyFile(folder, has_extension); !path.empty()) return path;
  }
  if (const fs::directory_iterator entries(folder, error); error) {
    return absl::PermissionDeniedError(
        base::StrCat("cannot read the folder ", folder.string(), ": ", error.message()));
  }
  return absl::NotFoundError(
      base::StrCat(folder.string(),
                   ": no tokenizer in this folder; expected tokenizer.json, tokenizer.model, one "
                   "rwkv_vocab*.txt, one *.tiktoken or one *.gguf file"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const fs::path& path) {
  fs::path file = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    HEDDLE_ASSIGN_OR_RETURN(file, FindInFolder(path));
  } else if (!fs::exists(path, error)) {
    return absl::NotFoundError(base::StrCat(path.string(), ": no such file or folder"));
  }
  HEDDLE_ASSIGN_OR_RETURN(TokenizerParts parts, LoadFile(file));
  if (file.extension() != ".gguf") {
    // A single file of another name is not its folder's tokenizer: other files there do not belong
    // to it.
    const bool has_added_tokens =
        file.filename() != "tokenizer.model" && file.extension() != ".tiktoken";
    HEDDLE_RETURN_IF_ERROR(ApplySidecars(file.parent_path(), has_added_tokens, &parts));
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file) {
  HEDDLE_ASSIGN_OR_RETURN(TokenizerParts parts, ParseGgufVocabulary(file));
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace heddle::engine::text
