#include "server/batch/batch_input.h"

#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/batch/disk.h"
#include "server/request/api_error.h"
#include "tests/support/temp_dir.h"

namespace heddle::server {
namespace {

const std::string kEndpoint = "/v1/completions";

std::string Line(const std::string& id, const std::string& body = R"({"prompt":"x"})") {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":)" + body +
         "}";
}

BatchRecord Checked(const std::string& text, BatchInputLimits limits = {}) {
  const test::TempDir folder;
  const std::string path = folder / "in";
  std::ofstream(path) << text;
  BatchRecord batch;
  batch.endpoint = kEndpoint;
  CHECK(CheckBatchInput(
            path, limits, [] { return false; }, &batch)
            .ok());
  return batch;
}

TEST_CASE("A line is an id and a request", "[unit]") {
  const auto line = ReadBatchLine(Line("a"), kEndpoint);
  REQUIRE(line.ok());
  CHECK(line->custom_id == "a");
  CHECK(line->body == R"({"prompt":"x"})");
}

TEST_CASE("A line that is none says what is wrong with it", "[unit]") {
  const std::pair<std::string, std::string> lines[] = {
      {"{", "invalid_json_line"},
      {"[]", "invalid_json_line"},
      {R"({"method":"POST","url":"/v1/completions","body":{}})", "missing_required_parameter"},
      {Line(std::string(513, 'a')), "missing_required_parameter"},
      {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})", "invalid_method"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}})",
       "mismatched_endpoint"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions"})",
       "missing_required_parameter"},
      {Line("a", "[]"), "missing_required_parameter"},
      {Line("a", R"({"stream":true})"), "invalid_request"},
      {Line("a", R"({"background":true})"), "invalid_request"},
  };
  for (const auto& [text, code] : lines) {
    INFO(text);
    CHECK(ToApiError(ReadBatchLine(text, kEndpoint).status()).code == code);
  }
  CHECK(ReadBatchLine(Line("a", R"({"stream":false})"), kEndpoint).ok());
}

TEST_CASE("Responses of a batch are not kept unless they are asked to be", "[unit]") {
  const auto body = [](const std::string& given) {
    const std::string line =
        R"({"custom_id":"a","method":"POST","url":"/v1/responses","body":)" + given + "}";
    return nlohmann::json::parse(ReadBatchLine(line, "/v1/responses")->body);
  };
  CHECK(body(R"({"input":"x"})")["store"] == false);
  CHECK(body(R"({"input":"x","store":true})")["store"] == true);
}

TEST_CASE("All lines of an input are checked, and faults name theirs", "[unit]") {
  const BatchRecord good = Checked(Line("a") + "\n\n" + Line("b") + "\r\n" + Line("c"));
  CHECK(good.total == 3);
  CHECK(good.faults.empty());

  const BatchRecord bad = Checked(Line("a") + "\n{}\n" + Line("a") + "\n");
  REQUIRE(bad.faults.size() == 2);
  CHECK(bad.faults[0].line == 2);
  CHECK(bad.faults[0].param == "custom_id");
  CHECK(bad.faults[1].line == 3);
  CHECK(bad.faults[1].code == "duplicate_custom_id");

  CHECK(Checked("").faults.front().code == "empty_file");
  CHECK(Checked("\n \n").faults.front().code == "empty_file");
  std::string many;
  for (int i = 0; i < 300; ++i) many += "x\n";
  CHECK(Checked(many).faults.size() == 100);
  CHECK(Checked(many, {.max_faults = 7}).faults.size() == 7);
  CHECK(Checked(Line("a") + "\n" + Line("b") + "\n" + Line("c"), {.max_lines = 2})
            .faults.front()
            .code == "too_many_requests");
}

TEST_CASE("A line that is too long costs no more memory than is allowed", "[unit]") {
  const std::string text = Line("a") + "\n" + std::string(300000, 'x') + "\n" + Line("b") + "\n";
  const BatchRecord batch = Checked(text, {.max_line_bytes = 1000});
  REQUIRE(batch.faults.size() == 1);
  CHECK(batch.faults[0].code == "line_too_long");
  CHECK(batch.faults[0].line == 2);
  CHECK(batch.total == 3);
}

TEST_CASE("Lines are read as they are in the file, whatever their lengths", "[unit]") {
  const test::TempDir folder;
  const std::string path = folder / "lines";
  std::vector<std::string> lines;
  for (size_t i = 0; i < 200; ++i) lines.push_back(std::string(i * i * 7 % 70001, 'a' + i % 26));
  {
    std::ofstream out(path);
    for (const std::string& line : lines) out << line << "\n";
    out << "the rest";
  }
  auto reader = LineReader::Open(path, 1 << 20);
  REQUIRE(reader.ok());
  for (const std::string& line : lines) CHECK(*reader->Next() == line);
  CHECK(reader->ended());
  CHECK(*reader->Next() == "the rest");
  CHECK_FALSE(reader->ended());
  CHECK_FALSE(reader->Next()->has_value());
}

}  // namespace
}  // namespace heddle::server
