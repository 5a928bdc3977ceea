#include "tests/server/byte_codec.h"

#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace heddle::test {
namespace {

constexpr std::string_view kNames[] = {"<s>", "<|end|>", "<|turn|>", ""};

class ByteStream final : public server::TokenStream {
 public:
  explicit ByteStream(bool keep_special) : keep_special_(keep_special) {}

  void Push(TokenId token, std::string* out) override {
    if (token > 255) {
      if (keep_special_) out->append(kNames[token - 256]);
      return;
    }
    waiting_.push_back(static_cast<char>(token));
    while (!waiting_.empty()) {
      size_t length = base::Utf8SequenceLength(waiting_);
      if (length == 0) {
        auto lead = static_cast<unsigned char>(waiting_[0]);
        size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
        if (waiting_.size() < wanted) return;
        out->append("\xEF\xBF\xBD");
        waiting_.erase(0, 1);
        continue;
      }
      out->append(waiting_, 0, length);
      waiting_.erase(0, length);
    }
  }
  void Finish(std::string* out) override {
    if (!waiting_.empty()) out->append("\xEF\xBF\xBD");
    waiting_.clear();
  }

 private:
  const bool keep_special_;
  std::string waiting_;
};

void AppendText(std::string_view text, std::vector<TokenId>* tokens) {
  for (char c : text) tokens->push_back(static_cast<unsigned char>(c));
}

}  // namespace

std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> tokens;
  AppendText(text, &tokens);
  return tokens;
}

engine::grammar::Vocabulary ByteCodec::MakeVocabulary() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  return {kByteVocab, [&bytes](TokenId id) {
            return id < 256 ? std::string_view(bytes).substr(static_cast<size_t>(id), 1)
                            : std::string_view();
          }};
}

absl::StatusOr<std::vector<TokenId>> ByteCodec::Encode(std::string_view text,
                                                       bool add_special) const {
  std::vector<TokenId> tokens;
  if (add_special) tokens.push_back(kBos);
  AppendText(text, &tokens);
  return tokens;
}

absl::StatusOr<std::vector<TokenId>> ByteCodec::EncodeChat(const server::ChatPrompt& prompt) const {
  if (!has_template) return absl::UnimplementedError("the model has no chat template");
  std::vector<TokenId> tokens = {kBos};
  auto turn = [&tokens](std::string_view role, std::string_view text) {
    tokens.push_back(kTurn);
    AppendText(role, &tokens);
    AppendText("\n", &tokens);
    AppendText(text, &tokens);
  };
  for (const auto& message : *prompt.messages) {
    std::string content = message.at("content").get<std::string>();
    if (content == "refuse me") return absl::InvalidArgumentError("the template says no");
    if (message.contains("tool_calls")) content += message.at("tool_calls").dump();
    turn(message.at("role").get<std::string>(), content);
  }
  if (prompt.tools != nullptr) turn("tools", prompt.tools->dump());
  if (prompt.kwargs != nullptr && !prompt.kwargs->empty()) turn("kwargs", prompt.kwargs->dump());
  if (prompt.add_generation_prompt) turn("assistant", "");
  bool thinks = prompt.kwargs != nullptr && prompt.kwargs->value("enable_thinking", false);
  if (thinks) AppendText("<think>\n", &tokens);
  return tokens;
}

std::unique_ptr<server::TokenStream> ByteCodec::NewStream(bool, server::KeptTokens kept) const {
  return std::make_unique<ByteStream>(kept.all);
}

std::string ByteCodec::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string text;
  for (TokenId id : ids) {
    if (id <= 255 || !skip_special) text += TokenBytes(id);
  }
  return text;
}

std::string ByteCodec::TokenBytes(TokenId token) const {
  if (token > 255) return std::string(kNames[token - 256]);
  return std::string(1, static_cast<char>(token));
}

}  // namespace heddle::test
