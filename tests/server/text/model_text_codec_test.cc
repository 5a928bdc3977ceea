// The TextCodec over real tokenizers and a real chat template. Ids are those of transformers 5
// (AutoTokenizer.encode, apply_chat_template) on the same files.
#include "server/text/model_text_codec.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/openai/openai_request.h"
#include "server/openai/tokenize.h"
#include "server/request/api_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {
namespace {

using engine::TokenId;
using nlohmann::ordered_json;
using server::ModelTextCodec;

std::unique_ptr<ModelTextCodec> Load(std::string_view folder,
                                     const ModelTextCodec::Options& options = {}) {
  auto tokenizer = engine::text::LoadTokenizer(SharedDataOrSkip(folder));
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  auto codec = ModelTextCodec::Create(*std::move(tokenizer), options);
  INFO(codec.status());
  REQUIRE(codec.ok());
  return *std::move(codec);
}

std::string StreamText(const ModelTextCodec& codec, const std::vector<TokenId>& ids,
                       bool after_text) {
  std::string text;
  auto stream = codec.NewStream(after_text, {});
  for (TokenId id : ids) stream->Push(id, &text);
  stream->Finish(&text);
  return text;
}

std::unique_ptr<ModelTextCodec> LoadGolden(const std::string& name,
                                           const ModelTextCodec::Options& options = {}) {
  auto tokenizer =
      engine::text::LoadTokenizer(SourceDir() / "tests" / "golden" / "tokenizers" / name);
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  auto codec = ModelTextCodec::Create(*std::move(tokenizer), options);
  REQUIRE(codec.ok());
  return *std::move(codec);
}

// tests/golden/tokenizers/pairs.json: the `tokenizers` library, truncation "longest_first".
TEST_CASE("Pairs of texts become the ids and types that tokenizers gives", "[server]") {
  std::ifstream in(SourceDir() / "tests" / "golden" / "tokenizers" / "pairs.json");
  const auto goldens = nlohmann::json::parse(in);
  for (const auto& [name, cases] : goldens.items()) {
    auto codec = LoadGolden(name);
    CHECK(codec->ending().size() == 1);
    for (const auto& entry : cases) {
      INFO(name << ", " << entry["first"] << " and " << entry["second"] << ", at most "
                << entry["limit"]);
      auto pair =
          codec->EncodePair(entry["first"].get<std::string>(), entry["second"].get<std::string>(),
                            entry["limit"].get<size_t>());
      REQUIRE(pair.ok());
      CHECK(pair->tokens == entry["ids"].get<std::vector<TokenId>>());
      std::vector<int> types(pair->tokens.size(), 0);
      if (pair->second_begin >= 0) {
        std::fill(types.begin() + pair->second_begin, types.end(), 1);
      }
      CHECK(types == entry["types"].get<std::vector<int>>());
    }
    CHECK_FALSE(codec->EncodePair("a", "b", 2).ok());
  }
}

TEST_CASE("Pairs are messages of a template that was given, or one text", "[server]") {
  ModelTextCodec::Options options;
  options.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}";
  auto codec = LoadGolden("wordpiece.json", options);
  CHECK(codec->EncodePair("q", "d", 100)->tokens ==
        codec->Encode("query: q document: d ", /*add_special=*/false).value());
  CHECK(codec->EncodePair("q", "d", 3)->tokens.size() == 3);
  auto plain = LoadGolden("falcon_like.json");
  CHECK(plain->EncodePair("a b", " c", 100)->tokens ==
        plain->Encode("a b c", /*add_special=*/true).value());
}

TEST_CASE("A conversation becomes the ids that transformers gives", "[server]") {
  auto codec = Load("tokenizers_hf/qwen2.5");
  ordered_json messages = {{{"role", "user"}, {"content", "Hi, who are you?"}}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  auto ids = codec->EncodeChat(prompt);
  INFO(ids.status());
  REQUIRE(ids.ok());
  CHECK(*ids == std::vector<TokenId>{151644, 8948, 198,    2610,  525,    1207,   16948,
                                     11,     3465, 553,    54364, 14817,  13,     1446,
                                     525,    264,  10950,  17847, 13,     151645, 198,
                                     151644, 872,  198,    13048, 11,     879,    525,
                                     498,    30,   151645, 198,   151644, 77091,  198});
  CHECK(codec->has_chat_template());
  CHECK(codec->knows_tools());
  CHECK(std::string(codec->TokenBytes(151645)) == "<|im_end|>");
}

// apply_chat_template(..., continue_final_message=True)
TEST_CASE("A last message that is to be continued stays open", "[server]") {
  ordered_json messages = {{{"role", "user"}, {"content", "Hi"}},
                           {{"role", "assistant"}, {"content", "The answer is "}}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  prompt.add_generation_prompt = false;
  prompt.continue_final = true;
  auto codec = Load("tokenizers_hf/qwen2.5");
  auto ids = codec->EncodeChat(prompt);
  INFO(ids.status());
  REQUIRE(ids.ok());
  CHECK(*ids == std::vector<TokenId>{151644, 8948, 198,   2610,  525,    1207,   16948,
                                     11,     3465, 553,   54364, 14817,  13,     1446,
                                     525,    264,  10950, 17847, 13,     151645, 198,
                                     151644, 872,  198,   13048, 151645, 198,    151644,
                                     77091,  198,  785,   4226,  374,    220});
  // Gemma's template trims messages: the space at the end goes with the tag.
  ModelTextCodec::Options options;
  std::ifstream file(SharedDataOrSkip("chat_templates/google-gemma-2-2b-it.jinja"));
  options.chat_template = std::string(std::istreambuf_iterator<char>(file), {});
  auto gemma = Load("tokenizers_hf/qwen2.5", std::move(options));
  ids = gemma->EncodeChat(prompt);
  REQUIRE(ids.ok());
  CHECK(gemma->Decode(*ids, /*skip_special=*/false) ==
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nThe answer is");
}

TEST_CASE("Special tokens give text where they are marks, and only there", "[server]") {
  auto codec = Load("tokenizers_hf/qwen2.5");
  const std::vector<std::string_view> marks = {"<|im_start|>tool"};
  std::string text;
  auto stream = codec->NewStream(/*after_text=*/true, {.marks = marks});
  for (TokenId id : {151644, 151645, 785}) stream->Push(id, &text);  // <|im_start|> <|im_end|> The
  stream->Finish(&text);
  CHECK(text == "<|im_start|>The");
}

TEST_CASE("Text comes back from its tokens, whole and streamed", "[server]") {
  auto codec = Load("tokenizers_hf/qwen2.5");
  const std::string text = "na\xC3\xAFve \xF0\x9F\x8E\x89 \xE6\x97\xA5\xE6\x9C\xAC";
  auto ids = codec->Encode(text, /*add_special=*/true);
  REQUIRE(ids.ok());
  CHECK(*ids == std::vector<TokenId>{3376, 37572, 586, 11162, 236, 231, 75402, 21894});
  CHECK(codec->Decode(*ids, true) == text);
  CHECK(StreamText(*codec, *ids, false) == text);
  CHECK(codec->TokenBytes(11162).size() > 0);
}

TEST_CASE("A SentencePiece continuation keeps its leading space, a text's start drops it",
          "[server]") {
  auto codec = Load("stories260K");
  auto ids = codec->Encode("Once upon a time", /*add_special=*/true);
  REQUIRE(ids.ok());
  CHECK(*ids == std::vector<TokenId>{1, 403, 407, 261, 378});
  CHECK(StreamText(*codec, *ids, false) == "Once upon a time");
  CHECK(StreamText(*codec, {407, 261}, /*after_text=*/true) == " upon a");
  CHECK(codec->TokenBytes(407) == " upon");
}

TEST_CASE("A model without a template refuses chats and says what to do", "[server]") {
  auto codec = Load("stories260K");
  ordered_json messages = ordered_json::array();
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  absl::Status status = codec->EncodeChat(prompt).status();
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK(std::string(status.message()).find("/v1/completions") != std::string::npos);
}

TEST_CASE("A chat template that costs too much is the request's error, and not a full queue",
          "[server]") {
  ModelTextCodec::Options options;
  options.chat_template =
      "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}";
  auto codec = Load("stories260K", options);
  ordered_json messages = {{{"role", "user"}, {"content", "x"}}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  const absl::Status status = codec->EncodeChat(prompt).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()) ==
        "the chat template, line 1: the template takes more than 4000000 steps");
}

TEST_CASE("A chat template that does not parse is refused by its name", "[server]") {
  ModelTextCodec::Options options;
  options.chat_template = "{{ messages }}\n{% if %}";
  options.template_name = "chat.jinja";
  auto tokenizer = engine::text::LoadTokenizer(SharedDataOrSkip("stories260K"));
  REQUIRE(tokenizer.ok());
  const absl::Status status = ModelTextCodec::Create(*std::move(tokenizer), options).status();
  CHECK(std::string(status.message()) == "chat.jinja, line 2: expected an expression, got '%}'");
}

TEST_CASE("Template arguments are variables, and cannot replace the messages", "[server]") {
  ModelTextCodec::Options options;
  options.chat_template =
      "{{ bos_token }}{{ style }}:{{ messages[0].content }}:{{ tools is none }}:{{ eos_token }}";
  auto codec = Load("stories260K", options);
  ordered_json messages = {{{"role", "user"}, {"content", "x"}}};
  ordered_json kwargs = {{"style", "a"}, {"messages", "stolen"}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  prompt.kwargs = &kwargs;
  auto ids = codec->EncodeChat(prompt);
  INFO(ids.status());
  REQUIRE(ids.ok());
  CHECK(codec->Decode(*ids, /*skip_special=*/false).find("a:x:True:") != std::string::npos);
  CHECK(ids->front() == 1);  // written by the template, and once
  CHECK((*ids)[1] != 1);
  CHECK(codec->knows_tools());  // the template asks for them
}

// fla-hub's folders end RWKV's answers with "\n\n", which is a token like others.
TEST_CASE("Templates write an end token that is plain text as this text", "[server]") {
  const TempDir dir;
  std::ofstream(dir / "rwkv_vocab_v20230424.txt") << "1 'a' 1\n2 ':' 1\n261 '\\n\\n' 2\n";
  std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token": "\n\n"})";
  auto tokenizer = engine::text::LoadTokenizer(dir.path());
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  ModelTextCodec::Options options;
  options.chat_template = "a:{{ eos_token }}";
  auto codec = ModelTextCodec::Create(*std::move(tokenizer), options);
  REQUIRE(codec.ok());
  ordered_json messages = {{{"role", "user"}, {"content", "x"}}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  const auto ids = (*codec)->EncodeChat(prompt);
  INFO(ids.status());
  REQUIRE(ids.ok());
  CHECK(*ids == std::vector<TokenId>{1, 2, 261});
}

// The demo model's tokenizer has tokens 0 to 1279; the last is </tool_response>, and 1275 and 1273
// end texts.
std::unique_ptr<ModelTextCodec> DemoCodec(int32_t vocab) {
  auto tokenizer = engine::text::LoadTokenizer(SourceDir() / "share/demo-model");
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  auto codec = ModelTextCodec::Create(*std::move(tokenizer), {.vocab = vocab});
  REQUIRE(codec.ok());
  return *std::move(codec);
}

// GGUF files for programs with built-in templates have their names, such as llama.cpp's "chatml".
TEST_CASE("A name in the place of a chat template is no template", "[server]") {
  const TempDir dir;
  std::ofstream(dir / "rwkv_vocab_v20230424.txt") << "1 'a' 1\n";
  std::ofstream(dir / "tokenizer_config.json") << R"({"chat_template": "chatml"})";
  const auto load = [&dir](const ModelTextCodec::Options& options) {
    auto tokenizer = engine::text::LoadTokenizer(dir.path());
    REQUIRE(tokenizer.ok());
    return ModelTextCodec::Create(*std::move(tokenizer), options).value();
  };
  const auto codec = load({});
  CHECK_FALSE(codec->has_chat_template());
  REQUIRE(codec->Warnings().size() == 1);
  CHECK(codec->Warnings()[0].find("\"chatml\"") != std::string::npos);
  ordered_json messages = {{{"role", "user"}, {"content", "a"}}};
  server::ChatPrompt prompt;
  prompt.messages = &messages;
  CHECK(absl::IsUnimplemented(codec->EncodeChat(prompt).status()));
  CHECK(codec->Encode("a", /*add_special=*/true).value() == std::vector<TokenId>{1});

  const auto with_template = load({.chat_template = "{{ messages[0].content }}"});
  CHECK(with_template->Warnings().empty());
  CHECK(with_template->EncodeChat(prompt).value() == std::vector<TokenId>{1});
}

TEST_CASE("What the tokenizer knows beyond the model does not exist", "[server]") {
  const auto whole = DemoCodec(1280);
  CHECK(whole->Warnings().empty());
  CHECK(whole->Encode("</tool_response>", false)->back() == 1279);

  const auto codec = DemoCodec(1279);
  CHECK(codec->vocab() == 1279);
  auto grammar = codec->grammars().Compile(
      {.kind = engine::grammar::ConstraintKind::kRegex, .text = "a|</tool_response>"});
  REQUIRE(grammar.ok());
  CHECK((*grammar)->vocabulary().size() == 1279);
  REQUIRE(codec->Warnings().size() == 1);
  CHECK(codec->Warnings()[0].find("up to id 1279") != std::string::npos);
  const absl::Status status = codec->Encode("a</tool_response>", false).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()).find("token 1279") != std::string::npos);
  CHECK(codec->Encode("<tool_response>", false).ok());

  const auto without_end = DemoCodec(1275);
  CHECK(std::vector<TokenId>(without_end->end_tokens().begin(), without_end->end_tokens().end()) ==
        std::vector<TokenId>{1273});
  CHECK(without_end->Warnings().size() == 2);
}

TEST_CASE("Ids of requests are the model's, wherever they stand", "[server]") {
  const auto codec = DemoCodec(1279);
  server::ServedModel model;
  model.max_context = 64;
  const server::RequestContext context{&model, codec.get(), 1};
  const auto param = [&context](const std::string& body) {
    const absl::Status status =
        server::ParseRequest(server::Endpoint::kCompletion, body, context).status();
    return status.ok() ? std::string("accepted") : server::ToApiError(status).param;
  };
  CHECK(param(R"({"prompt":"x","logit_bias":{"1278":-100},"stop_token_ids":[1278]})") ==
        "accepted");
  CHECK(param(R"({"prompt":"x","logit_bias":{"1279":-100}})") == "logit_bias.1279");
  CHECK(param(R"({"prompt":"x","stop_token_ids":[1279],"min_tokens":1})") == "stop_token_ids");
  CHECK(param(R"({"prompt":"x","bad_words":["</tool_response>"]})") == "bad_words");
  CHECK(param(R"({"prompt":"</tool_response>"})") == "prompt");
  CHECK(param(R"({"prompt":[1279]})") == "prompt");
  CHECK(param(R"({"prompt":["x","</tool_response>"]})") == "prompt[1]");
  const auto ids = server::Detokenize(R"({"tokens":[1279]})", context);
  CHECK(server::ToApiError(ids.status()).param == "tokens");
}

}  // namespace
}  // namespace heddle::test
