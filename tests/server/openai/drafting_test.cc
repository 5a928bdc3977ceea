// Fields of a request about drafts of its answer.
#include "server/openai/drafting.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

const ApiParser kParser;

scheduler::GenerationRequest Parsed(const std::string& members) {
  return kParser.Chat(members).generations.at(0);
}

TEST_CASE("Drafts are the server's to decide unless the request says more", "[openai]") {
  const scheduler::DraftLimits draft = Parsed("").draft;
  CHECK_FALSE(draft.off);
  CHECK(draft.max_tokens == -1);
  CHECK(draft.min_tokens == 0);
  CHECK(draft.min_survival == 0.0f);
  CHECK(Parsed(R"("speculative":{"off":true})").draft.off);
  const scheduler::DraftLimits own =
      Parsed(R"("speculative":{"max":8,"min":2,"min_p":0.25})").draft;
  CHECK(own.max_tokens == 8);
  CHECK(own.min_tokens == 2);
  CHECK(own.min_survival == 0.25f);
}

TEST_CASE("A request chooses how its guesses are verified", "[openai]") {
  CHECK_FALSE(Parsed("").sampling.rejects_guesses);
  CHECK_FALSE(Parsed(R"("speculative":{"mode":"exact"})").sampling.rejects_guesses);
  CHECK(Parsed(R"("speculative":{"mode":"rejection"})").sampling.rejects_guesses);
  CHECK(kParser.ChatRefused(R"("speculative":{"mode":"fast"})").param == "speculative.mode");
  CHECK(kParser.ChatRefused(R"("speculative":{"mode":1})").code == "invalid_type");
}

TEST_CASE("llama.cpp's names of the limits count where ours are not given", "[openai]") {
  const scheduler::DraftLimits llama =
      Parsed(R"("speculative.n_max":5,"speculative.n_min":1,"speculative.p_min":0.5)").draft;
  CHECK(llama.max_tokens == 5);
  CHECK(llama.min_tokens == 1);
  CHECK(llama.min_survival == 0.5f);
  const scheduler::DraftLimits both =
      Parsed(R"("speculative.n_max":5,"speculative.n_min":1,"speculative":{"max":0})").draft;
  CHECK(both.max_tokens == 0);
  CHECK(both.min_tokens == 1);
}

TEST_CASE("Limits of drafts out of range are refused by name", "[openai]") {
  CHECK(kParser.ChatRefused(R"("speculative":{"max":-1})").param == "speculative.max");
  CHECK(kParser.ChatRefused(R"("speculative":{"max":1025})").param == "speculative.max");
  CHECK(kParser.ChatRefused(R"("speculative":{"min_p":1.5})").param == "speculative.min_p");
  CHECK(kParser.ChatRefused(R"("speculative":{"off":1})").code == "invalid_type");
  CHECK(kParser.ChatRefused(R"("speculative":8)").param == "speculative");
  CHECK(kParser.ChatRefused(R"("speculative.n_max":-2)").param == "speculative.n_max");
  CHECK(kParser.ChatRefused(R"("speculative.n_max":"8")").code == "invalid_type");
  CHECK(kParser.ChatRefused(R"("speculative.p_min":-0.1)").param == "speculative.p_min");
  CHECK(kParser.ChatRefused(R"("speculative.p_min":-0.1)").http_status == 400);
}

TEST_CASE("A prediction is a text or parts of text, and becomes tokens", "[openai]") {
  CHECK(Parsed("").prediction.empty());
  CHECK(Parsed(R"("prediction":{"type":"content","content":"abc"})").prediction == Bytes("abc"));
  CHECK(Parsed(R"("prediction":{"type":"content","content":[{"type":"text","text":"ab"},
                                                            {"type":"text","text":"cd"}]})")
            .prediction == Bytes("abcd"));
  CHECK(Parsed(R"("prediction":{"content":""})").prediction.empty());
  CHECK(Parsed(R"("prediction":null)").prediction.empty());
  CHECK(kParser.Completion(R"({"prompt":"x","prediction":{"content":"y"}})")
            .generations.at(0)
            .prediction == Bytes("y"));
}

TEST_CASE("Other forms of a prediction are refused by name", "[openai]") {
  CHECK(kParser.ChatRefused(R"("prediction":"abc")").param == "prediction");
  CHECK(kParser.ChatRefused(R"("prediction":{"type":"content"})").param == "prediction.content");
  CHECK(kParser.ChatRefused(R"("prediction":{"type":"patch","content":"x"})").param ==
        "prediction.type");
  CHECK(kParser.ChatRefused(R"("prediction":{"content":7})").param == "prediction.content");
  CHECK(kParser.ChatRefused(R"("prediction":{"content":[7]})").param == "prediction.content[0]");
  CHECK(kParser.ChatRefused(R"("prediction":{"content":[{"type":"image_url"}]})").param ==
        "prediction.content[0]");
  CHECK(kParser.ChatRefused(R"("prediction":{"content":[{"type":"text","text":7}]})").param ==
        "prediction.content[0].text");
  CHECK(kParser.ChatRefused(R"("n":2,"prediction":{"content":"x"})").param == "prediction");
}

}  // namespace
}  // namespace heddle::test
