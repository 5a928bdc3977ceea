// Files and batches, over real sockets, with a fake engine.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/access/api_keys.h"
#include "tests/server/server_under_test.h"
#include "tests/server/two_users.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::HttpServerOptions;

HttpServerOptions WithFolder(const TempDir& folder, int concurrency = 4) {
  HttpServerOptions options;
  options.batch.folder = (folder / "batches").string();
  options.batch.concurrency = concurrency;
  return options;
}

std::string Line(const std::string& id, const json& body) {
  return json{{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}
             .dump() +
         "\n";
}

std::string Lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += Line("line " + std::to_string(i), {{"prompt", std::to_string(i)}});
  }
  return lines;
}

RawResponse Upload(RawClient* client, const std::string& content, const std::string& headers = "",
                   const std::string& purpose = "batch") {
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
      "\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" +
      content + "\r\n--b--\r\n";
  client->Send(
      "POST /v1/files HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; "
      "boundary=b\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
  return client->Read();
}

std::string FileOf(RawClient* client, const std::string& content, const std::string& headers = "") {
  const RawResponse response = Upload(client, content, headers);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body)["id"];
}

RawResponse Get(RawClient* client, const std::string& path, const std::string& headers = "",
                const std::string& method = "GET") {
  client->Send(method + " " + path + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
  return client->Read(/*head_request=*/method == "HEAD");
}

json Create(RawClient* client, const std::string& file, const std::string& headers = "",
            const std::string& window = "24h") {
  const json body = {{"input_file_id", file},
                     {"endpoint", "/v1/completions"},
                     {"completion_window", window},
                     {"metadata", {{"a", "b"}}}};
  const RawResponse response = client->Post("/v1/batches", body.dump(), headers);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

bool WaitFor(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// The batch once it has the status.
json WaitForStatus(RawClient* client, const std::string& id, const std::string& status,
                   const std::string& headers = "") {
  json batch;
  const bool came = WaitFor([&] {
    batch = json::parse(Get(client, "/v1/batches/" + id, headers).body);
    return batch["status"] == status;
  });
  INFO(batch.dump());
  REQUIRE(came);
  return batch;
}

// custom_id -> the line of results.
std::map<std::string, json> Results(RawClient* client, const json& file_id,
                                    const std::string& headers = "") {
  std::map<std::string, json> results;
  const RawResponse content =
      Get(client, "/v1/files/" + file_id.get<std::string>() + "/content", headers);
  REQUIRE(content.status == 200);
  size_t begin = 0;
  for (size_t end = 0; (end = content.body.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const json line = json::parse(content.body.substr(begin, end - begin));
    const std::string id = line["custom_id"];
    CHECK(results.count(id) == 0);
    results[id] = line;
  }
  return results;
}

// The value of a metric, with its labels as /metrics writes them; -1: it is not there.
double Metric(RawClient* client, const std::string& name) {
  const std::string text = "\n" + client->Get("/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

std::string Echo(const server::GenerationRequest& request) {
  return ByteCodec().Decode(request.prompt, /*skip_special=*/true);
}

TEST_CASE("All lines of a batch are answered, and those that cannot be are errors", "[server]") {
  const TempDir folder;
  ServerUnderTest server(Echo, WithFolder(folder));
  RawClient client(server.port());
  const std::string file =
      FileOf(&client, Lines(20) + Line("bad", {{"prompt", "x"}, {"temperature", -1}}) +
                          Line("model", {{"prompt", "x"}, {"model", "none"}}));
  const json created = Create(&client, file);
  CHECK(created["object"] == "batch");
  CHECK(created["metadata"] == json{{"a", "b"}});
  CHECK(created["expires_at"].get<int64_t>() - created["created_at"].get<int64_t>() == 86400);
  const json batch = WaitForStatus(&client, created["id"], "completed");
  CHECK(batch["request_counts"] == json{{"total", 22}, {"completed", 20}, {"failed", 2}});
  const auto results = Results(&client, batch["output_file_id"]);
  REQUIRE(results.size() == 20);
  for (int i = 0; i < 20; ++i) {
    const json& line = results.at("line " + std::to_string(i));
    CHECK(line["error"].is_null());
    CHECK(line["response"]["status_code"] == 200);
    const std::string text = line["response"]["body"]["choices"][0]["text"];
    CHECK(std::to_string(i).find(text) == 0);
  }
  const auto errors = Results(&client, batch["error_file_id"]);
  CHECK(errors.at("bad")["response"]["status_code"] == 400);
  CHECK(errors.at("bad")["response"]["body"]["error"]["param"] == "temperature");
  CHECK(errors.at("model")["response"]["status_code"] == 404);
  const json list = json::parse(client.Get("/v1/files?purpose=batch_output").body);
  CHECK(list["data"].size() == 2);
  CHECK(json::parse(client.Get("/v1/batches").body)["data"][0] == batch);
  CHECK(Metric(&client, "heddle_batch_lines_total{outcome=\"succeeded\"}") == 20);
  CHECK(Metric(&client, "heddle_batch_lines_total{outcome=\"failed\"}") == 2);
  CHECK(Metric(&client, "heddle_batches{status=\"completed\"}") == 1);
  CHECK(Metric(&client, "heddle_batches{status=\"in_progress\"}") == 0);
  CHECK(Metric(&client, "heddle_batches_ended_total{status=\"completed\"}") == 1);
  CHECK(Metric(&client, "heddle_batch_lines_left") == 0);
  CHECK(Metric(&client, "heddle_batch_file_bytes") > 20);
  CHECK(Metric(&client, "heddle_batch_file_bytes_limit") == int64_t{4} << 30);
}

TEST_CASE("Files are described, listed in pages, sent and deleted", "[server]") {
  const TempDir folder;
  ServerUnderTest server(Echo, WithFolder(folder));
  RawClient client(server.port());
  std::string content(1000000, 'x');
  for (size_t i = 0; i < content.size(); i += 1000)
    content[i] = static_cast<char>('a' + i / 1000 % 26);
  const std::string id = FileOf(&client, content);
  const json described = json::parse(client.Get("/v1/files/" + id).body);
  CHECK(described["bytes"] == 1000000);
  CHECK(described["filename"] == "in.jsonl");
  CHECK(client.Get("/v1/files/" + id + "/content").body == content);
  CHECK(Get(&client, "/v1/files/" + id + "/content", "", "HEAD").status == 200);
  const std::string second = FileOf(&client, "x");
  const json page = json::parse(client.Get("/v1/files?limit=1&order=asc").body);
  CHECK(page["data"].size() == 1);
  CHECK(page["has_more"] == true);
  for (const char* query : {"limit=0", "order=up", "after=none", "limit=x"}) {
    CHECK(client.Get(std::string("/v1/files?") + query).status == 400);
  }
  CHECK(json::parse(Get(&client, "/v1/files/" + id, "", "DELETE").body)["deleted"] == true);
  CHECK(Get(&client, "/v1/files/" + id, "", "DELETE").status == 404);
  CHECK(client.Get("/v1/files/" + id).status == 404);
  CHECK(client.Get("/v1/files/" + id + "/content").status == 404);
  for (const char* wrong : {"..", "%2e%2e%2flock", "file-%00", "lock"}) {
    CHECK(client.Get(std::string("/v1/files/") + wrong).status == 404);
  }
  CHECK(json::parse(client.Get("/v1/files").body)["data"].size() == 1);
  CHECK(Upload(&client, "x", "", "").status == 400);
  CHECK(client.Post("/v1/files", "{}").status == 400);
}

TEST_CASE("Files and batches belong to a key", "[server]") {
  const TempDir folder;
  HttpServerOptions options = WithFolder(folder);
  options.hashed_keys = *server::ParseKeyFile(kKeys, {});
  ServerUnderTest server(Echo, options);
  RawClient client(server.port());
  const std::string file = FileOf(&client, Lines(2), kAlice);
  CHECK(Get(&client, "/v1/files/" + file, kBob).status == 404);
  CHECK(Get(&client, "/v1/files/" + file + "/content", kBob).status == 404);
  CHECK(Get(&client, "/v1/files/" + file, kBob, "DELETE").status == 404);
  CHECK(json::parse(Get(&client, "/v1/files", kBob).body)["data"].empty());
  CHECK(Upload(&client, "x").status == 401);
  const json body = {
      {"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  CHECK(client.Post("/v1/batches", body.dump(), kBob).status == 404);
  const std::string id = Create(&client, file, kAlice)["id"];
  CHECK(Get(&client, "/v1/batches/" + id, kBob).status == 404);
  CHECK(client.Post("/v1/batches/" + id + "/cancel", "", kBob).status == 404);
  CHECK(json::parse(Get(&client, "/v1/batches", kBob).body)["data"].empty());
  const json batch = WaitForStatus(&client, id, "completed", kAlice);
  CHECK(Results(&client, batch["output_file_id"], kAlice).size() == 2);
  CHECK(Get(&client, "/v1/files/" + batch["output_file_id"].get<std::string>(), kBob).status ==
        404);
}

TEST_CASE("A key that is taken away answers no more lines", "[server]") {
  const TempDir folder;
  HttpServerOptions options = WithFolder(folder, /*concurrency=*/1);
  options.hashed_keys = *server::ParseKeyFile(kKeys, {});
  options.keys_may_change = true;
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  ServerUnderTest server(std::move(fake), options);
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(3), kAlice), kAlice)["id"];
  engine->WaitForRequest(0);
  server.http->ReplaceKeys({options.hashed_keys[1]});
  engine->EmitText(0, "x");
  engine->EmitEnd(0, server::FinishReason::kStop);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  server.http->ReplaceKeys(options.hashed_keys);
  const json batch = WaitForStatus(&client, id, "completed", kAlice);
  CHECK(batch["request_counts"] == json{{"total", 3}, {"completed", 1}, {"failed", 2}});
  const auto errors = Results(&client, batch["error_file_id"], kAlice);
  CHECK(errors.at("line 2")["response"]["status_code"] == 401);
  CHECK(engine->num_submitted() == 1);
}

TEST_CASE("Beside live requests one line runs, and while some wait none does", "[server]") {
  const TempDir folder;
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  server::EngineStats stats;
  stats.running_sequences = 5;
  engine->SetStats(stats);
  ServerUnderTest server(std::move(fake), WithFolder(folder));
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(10)))["id"];
  engine->WaitForRequest(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(engine->num_submitted() == 1);
  CHECK_FALSE(engine->IsPaused(0));

  stats.waiting_requests = 5;
  engine->SetStats(stats);
  CHECK(WaitFor([&] { return engine->IsPaused(0); }));

  stats.waiting_requests = 0;
  stats.running_sequences = 0;
  engine->SetStats(stats);
  CHECK(WaitFor([&] { return engine->num_submitted() == 4 && !engine->IsPaused(0); }));

  stats.running_sequences = 9;  // four of which are the batch's
  engine->SetStats(stats);
  CHECK(WaitFor([&] { return engine->IsPaused(1) && engine->IsPaused(2) && engine->IsPaused(3); }));
  CHECK_FALSE(engine->IsPaused(0));
  CHECK(engine->num_submitted() == 4);
  CHECK(Metric(&client, "heddle_batch_lines_running") == 4);
  CHECK(WaitFor([&] { return Metric(&client, "heddle_batch_lines_held") == 3; }));
  CHECK(Metric(&client, "heddle_batch_lines_left") == 10);
  // All lines are one client of the scheduler's, and not a live one.
  CHECK(engine->WaitForRequest(0).tenant == engine->WaitForRequest(3).tenant);
  CHECK(engine->WaitForRequest(0).tenant != 0);
}

TEST_CASE("A line that is told to come later is tried again", "[server]") {
  const TempDir folder;
  auto fake = std::make_unique<FakeGeneration>(Echo);
  FakeGeneration* engine = fake.get();
  engine->FailSubmits(absl::ResourceExhaustedError("full"));
  ServerUnderTest server(std::move(fake), WithFolder(folder));
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(3)))["id"];
  CHECK(WaitFor(
      [&] { return Metric(&client, "heddle_batch_lines_total{outcome=\"delayed\"}") >= 1; }));
  engine->FailSubmits(absl::OkStatus());
  const json batch = WaitForStatus(&client, id, "completed");
  CHECK(batch["request_counts"] == json{{"total", 3}, {"completed", 3}, {"failed", 0}});
  CHECK(Metric(&client, "heddle_batch_lines_total{outcome=\"succeeded\"}") == 3);
}

TEST_CASE("A batch goes on in the next process, and answers nothing twice", "[server]") {
  const TempDir folder;
  std::string id;
  {
    auto fake = std::make_unique<FakeGeneration>();
    FakeGeneration* engine = fake.get();
    ServerUnderTest server(std::move(fake), WithFolder(folder));
    RawClient client(server.port());
    id = Create(&client, FileOf(&client, Lines(6)))["id"];
    engine->WaitForRequest(3);
    engine->EmitText(2, "first");
    engine->EmitEnd(2, server::FinishReason::kStop);
    engine->WaitForRequest(4);
    CHECK(WaitFor([&] {
      const json batch = json::parse(client.Get("/v1/batches/" + id).body);
      return batch["request_counts"]["completed"] == 1;
    }));
  }
  std::atomic<int> answered = 0;
  ServerUnderTest server(
      [&](const server::GenerationRequest&) {
        ++answered;
        return "second";
      },
      WithFolder(folder));
  RawClient client(server.port());
  const json batch = WaitForStatus(&client, id, "completed");
  CHECK(batch["request_counts"] == json{{"total", 6}, {"completed", 6}, {"failed", 0}});
  const auto results = Results(&client, batch["output_file_id"]);
  CHECK(results.size() == 6);
  CHECK(results.at("line 2")["response"]["body"]["choices"][0]["text"] == "first");
  CHECK(results.at("line 0")["response"]["body"]["choices"][0]["text"] == "second");
  CHECK(answered == 5);
}

TEST_CASE("A folder belongs to one server", "[server]") {
  const TempDir folder;
  ServerUnderTest server(Echo, WithFolder(folder));
  const auto second = server::BatchService::Open(WithFolder(folder).batch);
  CHECK(absl::IsFailedPrecondition(second.status()));
  CHECK(std::string(second.status().message()).find("another server") != std::string::npos);
}

TEST_CASE("A cancelled batch keeps what it has", "[server]") {
  const TempDir folder;
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  ServerUnderTest server(std::move(fake), WithFolder(folder, /*concurrency=*/2));
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(6)))["id"];
  engine->WaitForRequest(1);
  engine->EmitText(0, "done");
  engine->EmitEnd(0, server::FinishReason::kStop);
  engine->WaitForRequest(2);
  const json cancelling = json::parse(client.Post("/v1/batches/" + id + "/cancel", "").body);
  CHECK(cancelling["status"] == "cancelling");
  const json batch = WaitForStatus(&client, id, "cancelled");
  CHECK(batch["cancelled_at"].is_number());
  CHECK(Results(&client, batch["output_file_id"]).size() == 1);
  CHECK(batch["error_file_id"].is_null());
  CHECK(engine->WaitForCancel(1));
  CHECK(engine->WaitForCancel(2));
  CHECK(client.Post("/v1/batches/" + id + "/cancel", "").status == 400);
}

TEST_CASE("A batch that takes too long says so for each line that is left", "[server]") {
  const TempDir folder;
  auto fake = std::make_unique<FakeGeneration>();
  FakeGeneration* engine = fake.get();
  ServerUnderTest server(std::move(fake), WithFolder(folder, /*concurrency=*/2));
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(5)), "", "2s")["id"];
  engine->WaitForRequest(1);
  engine->EmitText(0, "done");
  engine->EmitEnd(0, server::FinishReason::kStop);
  const json batch = WaitForStatus(&client, id, "expired");
  CHECK(batch["request_counts"] == json{{"total", 5}, {"completed", 1}, {"failed", 4}});
  const auto errors = Results(&client, batch["error_file_id"]);
  CHECK(errors.size() == 4);
  CHECK(errors.at("line 4")["error"]["code"] == "batch_expired");
  CHECK(errors.at("line 4")["response"].is_null());
  CHECK(Metric(&client, "heddle_batch_lines_total{outcome=\"expired\"}") == 4);
  CHECK(Metric(&client, "heddle_batches_ended_total{status=\"expired\"}") == 1);
  CHECK(engine->WaitForCancel(1));
}

TEST_CASE("A batch whose input is wrong fails as a whole and says where", "[server]") {
  const TempDir folder;
  ServerUnderTest server(Echo, WithFolder(folder));
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(1) + "{\n" + Lines(1)))["id"];
  const json batch = WaitForStatus(&client, id, "failed");
  CHECK(batch["errors"]["data"].size() == 2);
  CHECK(batch["errors"]["data"][0]["line"] == 2);
  CHECK(batch["errors"]["data"][1]["code"] == "duplicate_custom_id");
  CHECK(batch["output_file_id"].is_null());

  const std::string file = FileOf(&client, Lines(1));
  const json good = {
      {"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  for (const auto& [field, value] : {std::pair<const char*, json>{"endpoint", "/v1/rerank"},
                                     {"completion_window", "24"},
                                     {"completion_window", "31d"},
                                     {"completion_window", "-1h"},
                                     {"completion_window", "h"},
                                     {"input_file_id", 7},
                                     {"metadata", "x"},
                                     {"output_expires_after", {{"seconds", 1}}}}) {
    json body = good;
    body[field] = value;
    const RawResponse response = client.Post("/v1/batches", body.dump());
    INFO(response.body);
    CHECK(response.status == 400);
  }
  const std::string other = json::parse(Upload(&client, Lines(1), "", "user_data").body)["id"];
  json body = good;
  body["input_file_id"] = other;
  CHECK(client.Post("/v1/batches", body.dump()).status == 400);
  body["input_file_id"] = "file-none";
  CHECK(client.Post("/v1/batches", body.dump()).status == 404);
}

TEST_CASE("Without a folder there are no files and no batches, and the answer says why",
          "[server]") {
  ServerUnderTest server(Echo);
  RawClient client(server.port());
  for (const RawResponse& response :
       {client.Get("/v1/files"), client.Get("/v1/batches/x"), Upload(&client, "x")}) {
    CHECK(response.status == 501);
    CHECK(json::parse(response.body)["error"]["message"].get<std::string>().find("--batch-dir") !=
          std::string::npos);
  }
}

TEST_CASE("Files of all clients have a bound", "[server]") {
  const TempDir folder;
  HttpServerOptions options = WithFolder(folder);
  options.batch.max_bytes = 2600;  // a result has some 400
  ServerUnderTest server(Echo, options);
  RawClient client(server.port());
  const std::string large = FileOf(&client, std::string(1500, 'x'));
  const RawResponse full = Upload(&client, std::string(1200, 'x'));
  CHECK(full.status == 429);
  CHECK(json::parse(full.body)["error"]["code"] == "insufficient_quota");
  // Results that do not fit wait until somebody has made room.
  const std::string id = Create(&client, FileOf(&client, Lines(3)))["id"];
  CHECK(WaitFor([&] { return Metric(&client, "heddle_batch_lines_left") < 3; }));
  CHECK(json::parse(Get(&client, "/v1/batches/" + id).body)["status"] == "in_progress");
  CHECK(Get(&client, "/v1/files/" + large, "", "DELETE").status == 200);
  const json batch = WaitForStatus(&client, id, "completed");
  CHECK(batch["request_counts"] == json{{"total", 3}, {"completed", 3}, {"failed", 0}});
  CHECK(Results(&client, batch["output_file_id"]).size() == 3);
}

TEST_CASE("A batch without room for its results can be cancelled", "[server]") {
  const TempDir folder;
  HttpServerOptions options = WithFolder(folder);
  options.batch.max_bytes = 1300;
  ServerUnderTest server(Echo, options);
  RawClient client(server.port());
  const std::string id = Create(&client, FileOf(&client, Lines(5)))["id"];
  CHECK(WaitFor([&] { return Metric(&client, "heddle_batch_lines_left") < 5; }));
  CHECK(client.Post("/v1/batches/" + id + "/cancel", "").status == 200);
  const json batch = WaitForStatus(&client, id, "cancelled");
  CHECK(batch["request_counts"]["completed"] < 5);
}

}  // namespace
}  // namespace heddle::test
