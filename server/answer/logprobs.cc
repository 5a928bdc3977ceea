#include "server/answer/logprobs.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace heddle::server {
namespace {

// JSON has no infinity; OpenAI writes this for an impossible token.
constexpr float kImpossible = -9999.0f;

float Finite(float logprob) { return std::max(logprob, kImpossible); }

void WriteTokenText(TokenId token, float logprob, const TextCodec& codec, JsonWriter* json) {
  std::string bytes = codec.TokenBytes(token);
  json->Member("token", bytes).Key("logprob").Number(Finite(logprob));
  json->Key("bytes").BeginArray();
  for (char byte : bytes) json->Int(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  json->EndArray();
}

std::string CompletionTokenText(TokenId token, const TextCodec& codec) {
  std::string bytes = codec.TokenBytes(token);
  if (base::IsValidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (char byte : bytes) {
    absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return text;
}

void WriteCompletionTop(const ChoiceToken& token, int32_t num_top, const TextCodec& codec,
                        JsonWriter* json) {
  if (!token.has_logprob) {
    json->Null();
    return;
  }
  json->BeginObject();
  std::vector<std::string> seen;  // if two tokens have the same text, the likelier one counts
  auto member = [&](TokenId id, float logprob) {
    std::string text = CompletionTokenText(id, codec);
    if (std::find(seen.begin(), seen.end(), text) != seen.end()) return;
    json->Key(text).Number(Finite(logprob));
    seen.push_back(std::move(text));
  };
  auto count = std::min(static_cast<size_t>(num_top), token.top.size());
  for (size_t i = 0; i < count; ++i) member(token.top[i].token, token.top[i].logprob);
  member(token.token, token.logprob);
  json->EndObject();
}

}  // namespace

void WriteTokenLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                        const TextCodec& codec, JsonWriter* json) {
  json->BeginArray();
  for (const ChoiceToken& token : tokens) {
    json->BeginObject();
    WriteTokenText(token.token, token.logprob, codec, json);
    json->Key("top_logprobs").BeginArray();
    auto count = std::min(static_cast<size_t>(num_top), token.top.size());
    for (size_t i = 0; i < count; ++i) {
      json->BeginObject();
      WriteTokenText(token.top[i].token, token.top[i].logprob, codec, json);
      json->EndObject();
    }
    json->EndArray().EndObject();
  }
  json->EndArray();
}

void WriteChatLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top, const TextCodec& codec,
                       JsonWriter* json) {
  json->BeginObject().Key("content");
  WriteTokenLogprobs(tokens, num_top, codec, json);
  json->NullMember("refusal").EndObject();
}

void WriteCompletionLogprobs(std::span<const ChoiceToken> tokens, int32_t num_top,
                             const TextCodec& codec, JsonWriter* json) {
  json->BeginObject().Key("tokens").BeginArray();
  for (const ChoiceToken& token : tokens) json->String(CompletionTokenText(token.token, codec));
  json->EndArray().Key("token_logprobs").BeginArray();
  for (const ChoiceToken& token : tokens) {
    token.has_logprob ? json->Number(Finite(token.logprob)) : json->Null();
  }
  json->EndArray().Key("top_logprobs").BeginArray();
  for (const ChoiceToken& token : tokens) WriteCompletionTop(token, num_top, codec, json);
  json->EndArray().Key("text_offset").BeginArray();
  for (const ChoiceToken& token : tokens) json->Int(token.text_offset);
  json->EndArray().EndObject();
}

void WritePromptLogprobs(std::span<const TokenId> prompt,
                         std::span<const engine::SampledToken> scores, int32_t num_top,
                         const TextCodec& codec, JsonWriter* json) {
  auto member = [&](TokenId token, float logprob, size_t rank) {
    json->Key(std::to_string(token)).BeginObject();
    json->Key("logprob").Number(Finite(logprob));
    if (rank > 0) json->Member("rank", rank);
    json->Member("decoded_token", codec.TokenBytes(token)).EndObject();
  };
  json->BeginArray();
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == 0 || i > scores.size()) {
      json->Null();
      continue;
    }
    const engine::SampledToken& score = scores[i - 1];
    auto count = std::min(static_cast<size_t>(num_top), score.top.size());
    bool among = false;
    json->BeginObject();
    for (size_t t = 0; t < count; ++t) {
      among |= score.top[t].token == score.token;
      member(score.top[t].token, score.top[t].logprob, t + 1);
    }
    if (!among) member(score.token, score.logprob, 0);
    json->EndObject();
  }
  json->EndArray();
}

}  // namespace heddle::server
