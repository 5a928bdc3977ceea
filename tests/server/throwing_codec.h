// A ByteCodec that throws as libraries do: texts with "THROW" in them a runtime_error, those with
// "MEMORY" bad_alloc, and so does an answer's token kThrowingByte. The exception's text must reach
// no client.
// Thread-safety: that of ByteCodec.
#pragma once

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/server/byte_codec.h"

namespace heddle::test {

class ThrowingCodec final : public server::TextCodec {
 public:
  static constexpr char kThrowingByte = '!';

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool special) const override {
    if (text.find("THROW") != std::string_view::npos) throw std::runtime_error("the secret text");
    if (text.find("MEMORY") != std::string_view::npos) throw std::bad_alloc();
    return codec_.Encode(text, special);
  }
  absl::StatusOr<std::vector<TokenId>> EncodeChat(const server::ChatPrompt& prompt) const override {
    return codec_.EncodeChat(prompt);
  }
  std::unique_ptr<server::TokenStream> NewStream(bool after_text,
                                                 server::KeptTokens kept) const override {
    return std::make_unique<Stream>(codec_.NewStream(after_text, kept));
  }
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const override {
    return codec_.Decode(ids, skip_special);
  }
  std::string TokenBytes(TokenId token) const override { return codec_.TokenBytes(token); }
  bool knows_tools() const override { return codec_.knows_tools(); }
  bool has_chat_template() const override { return codec_.has_chat_template(); }
  const server::OutputSyntax& syntax() const override { return codec_.syntax(); }
  engine::grammar::GrammarCompiler& grammars() const override { return codec_.grammars(); }
  int32_t vocab() const override { return codec_.vocab(); }
  std::span<const TokenId> end_tokens() const override { return codec_.end_tokens(); }

 private:
  class Stream final : public server::TokenStream {
   public:
    explicit Stream(std::unique_ptr<server::TokenStream> stream) : stream_(std::move(stream)) {}
    void Push(TokenId token, std::string* out) override {
      if (token == kThrowingByte) throw std::runtime_error("the secret text");
      stream_->Push(token, out);
    }
    void Finish(std::string* out) override { stream_->Finish(out); }

   private:
    std::unique_ptr<server::TokenStream> stream_;
  };

  ByteCodec codec_;
};

}  // namespace heddle::test
