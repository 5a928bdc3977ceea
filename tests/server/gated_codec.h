// A ByteCodec that a test can hold up: texts with kGate in them, and the first grammar, are not
// finished before the gate opens. This tests what happens beside a long preparation without a
// clock.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/byte_codec.h"

namespace heddle::test {

class Gate {
 public:
  // Waits until it is open, 20 s at the most: a test that fails must end.
  void Pass() {
    std::unique_lock lock(mutex_);
    ++reached_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return open_; });
  }

  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

  // Whether `count` have come to the gate, within ten seconds.
  bool WaitForReached(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return reached_ >= count; });
  }

  int reached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int reached_ = 0;    // GUARDED_BY(mutex_)
  bool open_ = false;  // GUARDED_BY(mutex_)
};

class GatedCodec final : public server::TextCodec {
 public:
  static constexpr std::string_view kGate = "HOLD";

  GatedCodec()
      : grammars_(
            [this] {
              grammar_gate.Pass();
              return engine::grammar::Vocabulary(
                  kByteVocab, [this](TokenId id) -> std::string_view {
                    if (id >= 256) return {};
                    return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
                  });
            },
            {kEos}) {
    for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
  }
  ~GatedCodec() override { OpenAll(); }

  void OpenAll() {
    text_gate.Open();
    grammar_gate.Open();
  }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool special) const override {
    if (text.find(kGate) != std::string_view::npos) text_gate.Pass();
    return codec_.Encode(text, special);
  }
  absl::StatusOr<std::vector<TokenId>> EncodeChat(const server::ChatPrompt& prompt) const override {
    auto tokens = codec_.EncodeChat(prompt);
    if (tokens.ok() && codec_.Decode(*tokens, true).find(kGate) != std::string::npos) {
      text_gate.Pass();
    }
    return tokens;
  }
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const override {
    std::string text = codec_.Decode(ids, skip_special);
    if (text.starts_with(kGate)) text_gate.Pass();
    return text;
  }
  std::unique_ptr<server::TokenStream> NewStream(bool after_text,
                                                 server::KeptTokens kept) const override {
    return codec_.NewStream(after_text, kept);
  }
  std::string TokenBytes(TokenId token) const override { return codec_.TokenBytes(token); }
  bool has_chat_template() const override { return codec_.has_chat_template(); }
  bool knows_tools() const override { return codec_.knows_tools(); }
  const server::OutputSyntax& syntax() const override { return codec_.syntax(); }
  engine::grammar::GrammarCompiler& grammars() const override { return grammars_; }
  int32_t vocab() const override { return codec_.vocab(); }
  std::span<const TokenId> end_tokens() const override { return codec_.end_tokens(); }

  mutable Gate text_gate;
  mutable Gate grammar_gate;

 private:
  ByteCodec codec_;
  std::string bytes_;  // of tokens 0 to 255
  mutable engine::grammar::GrammarCompiler grammars_;
};

}  // namespace heddle::test
