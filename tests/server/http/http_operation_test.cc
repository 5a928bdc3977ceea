// The HTTP front end as operators see it: health and readiness, draining, keys, metrics.
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/server/http/shared_requests.h"
#include "tests/server/server_under_test.h"
#include "tests/support/paths.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::FinishReason;
using server::HttpServerOptions;

TEST_CASE("Readiness is 503 while loading and draining, health stays", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  CHECK(client.Get("/ready").status == 200);
  server.http->SetReady(false);
  RawResponse draining = client.Get("/ready");
  CHECK(draining.status == 503);
  CHECK(ErrorOf(draining)["type"] == "service_unavailable_error");
  CHECK(client.Post("/v1/chat/completions", kChat).status == 503);
  CHECK(client.Get("/health").status == 200);
}

TEST_CASE("A server that leaves is not ready, serves on, and ends its connections", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient kept(server.port());
  CHECK(kept.Get("/ready").status == 200);
  server.http->Leave();
  CHECK(kept.Get("/ready").status == 503);
  CHECK(kept.ReadsEnd());
  RawClient late(server.port());
  const RawResponse answer = late.Post("/v1/chat/completions", kChat);
  CHECK(answer.status == 200);
  CHECK(answer.headers.at("connection") == "close");
  server.http->SetReady(false);
  CHECK(RawClient(server.port()).Post("/v1/chat/completions", kChat).status == 503);
}

TEST_CASE("A server whose engine has failed is not ready", "[server]") {
  ServerUnderTest server(SayHiThere);
  CHECK(RawClient(server.port()).Get("/ready").status == 200);
  server::EngineStats stats;
  stats.state = server::EngineState::kFailed;
  server.generation->SetStats(stats);
  RawClient client(server.port());
  const RawResponse ready = client.Get("/ready");
  CHECK(ready.status == 503);
  CHECK(ready.body.find("the engine has failed") != std::string::npos);
  CHECK(client.Post("/v1/chat/completions", kChat).status == 503);
}

TEST_CASE("Health fails when a step does not end, or the engine has failed", "[server]") {
  ServerUnderTest server(SayHiThere);
  server::EngineStats stats;
  stats.busy_since_seconds = 61;
  server.generation->SetStats(stats);
  CHECK(RawClient(server.port()).Get("/health").status == 503);
  CHECK(RawClient(server.port()).Get("/ready").status == 503);
  // It may end yet, so requests may wait for it.
  CHECK(RawClient(server.port()).Post("/v1/chat/completions", kChat).status == 200);
  stats.busy_since_seconds = 0;
  server.generation->SetStats(stats);
  CHECK(RawClient(server.port()).Get("/health").status == 200);
  CHECK(RawClient(server.port()).Get("/ready").status == 200);
  stats.state = server::EngineState::kFailed;
  server.generation->SetStats(stats);
  CHECK(RawClient(server.port()).Get("/health").status == 503);
}

TEST_CASE("Draining answers what runs, then closes", "[server]") {
  ServerUnderTest server;
  RawClient idle(server.port());
  CHECK(idle.Get("/health").status == 200);
  RawClient busy(server.port());
  busy.Send(PostText("/v1/chat/completions", kChat));
  server.generation->WaitForRequest(0);
  bool drained = false;
  std::thread drain(
      [&] { drained = server.http->Drain(server::Clock::now() + std::chrono::seconds(10)); });
  CHECK(idle.ReadsEnd());  // draining has begun
  server.generation->EmitText(0, "done");
  server.generation->EmitEnd(0, FinishReason::kStop);
  RawResponse response = busy.Read();
  CHECK(response.status == 200);
  CHECK(busy.ReadsEnd());
  busy.Close();
  drain.join();
  CHECK(drained);
}

TEST_CASE("Stop cancels what is left after a drain that took too long", "[server]") {
  ServerUnderTest server;
  RawClient busy(server.port());
  busy.Send(PostText("/v1/chat/completions", kChat));
  server.generation->WaitForRequest(0);
  CHECK_FALSE(server.http->Drain(server::Clock::now()));
  server.http->Stop();
  CHECK(server.generation->WaitForCancel(0));
  CHECK(busy.ReadsEnd());
}

TEST_CASE("A page of another site is refused, unless it has a key", "[server]") {
  const auto post = [](uint16_t port, const std::string& headers) {
    RawClient client(port);
    std::string request = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    request.append(headers).append("Content-Type: text/plain\r\nContent-Length: ");
    request.append(std::to_string(std::string_view(kChat).size())).append("\r\n\r\n");
    client.Send(request.append(kChat));
    return client.Read();
  };
  const std::string page = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
  ServerUnderTest open(SayHiThere);
  const RawResponse refused = post(open.port(), page);
  CHECK(refused.status == 403);
  CHECK(ErrorOf(refused)["message"].get<std::string>().find("--cors-origin") != std::string::npos);
  CHECK(post(open.port(), "").status == 200);

  HttpServerOptions options;
  options.api_keys = {"sk-right"};
  ServerUnderTest locked(SayHiThere, options);
  CHECK(post(locked.port(), page).status == 401);
  CHECK(
      post(locked.port(), std::string(page).append("Authorization: Bearer sk-right\r\n")).status ==
      200);
}

TEST_CASE("Keys: a missing or wrong one is 401, health needs none", "[server]") {
  HttpServerOptions options;
  options.api_keys = {"sk-right", "sk-other"};
  ServerUnderTest server(SayHiThere, options);
  RawClient client(server.port());
  RawResponse missing = client.Post("/v1/chat/completions", kChat);
  CHECK(missing.status == 401);
  CHECK(ErrorOf(missing)["code"] == "invalid_api_key");
  CHECK(client.Post("/v1/chat/completions", kChat, "Authorization: Bearer sk-wrong\r\n").status ==
        401);
  CHECK(client.Post("/v1/chat/completions", kChat, "Authorization: Bearer sk-other\r\n").status ==
        200);
  CHECK(client.Get("/health").status == 200);
}

TEST_CASE("Metrics count requests, outcomes and tokens", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Post("/v1/chat/completions", kChatStream);
  client.Post("/v1/chat/completions", R"({"messages":3})");
  RawResponse response = client.Get("/metrics");
  CHECK(response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8");
  auto has = [&](std::string_view line) { return response.body.find(line) != std::string::npos; };
  CHECK(has(
      R"(heddle_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1)"));
  CHECK(has(
      R"(heddle_http_requests_total{method="POST",route="/v1/chat/completions",status="400"} 1)"));
  CHECK(has(
      R"(heddle_generation_requests_total{outcome="client_error",route="/v1/chat/completions"} 1)"));
  CHECK(
      has(R"(heddle_generation_requests_total{outcome="success",route="/v1/chat/completions"} 1)"));
  CHECK(has("heddle_time_to_first_token_seconds_count 1"));
  CHECK(has("heddle_inter_token_seconds_count 8"));  // nine tokens: eight letters and the end
  CHECK(has("heddle_generated_tokens_total 9"));
  CHECK(has("heddle_request_generated_tokens_sum 9"));
  CHECK(has("heddle_request_prompt_tokens_count 1"));
  CHECK(has(R"(heddle_generation_duration_seconds_count{outcome="success",)"
            R"(route="/v1/chat/completions"} 1)"));
  CHECK(has("heddle_orphaned_requests 0"));
  CHECK(has("heddle_open_connections 1"));
  CHECK(has("process_resident_memory_bytes "));
}

TEST_CASE("Every metric is documented, and every documented one is sent", "[server]") {
  ServerUnderTest server(SayHiThere);
  RawClient client(server.port());
  client.Post("/v1/chat/completions", kChat);
  auto names = [](const std::string& text, const std::string& pattern) {
    std::set<std::string> found;
    std::regex regex(pattern);
    for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
      found.insert((*it)[1]);
    }
    return found;
  };
  std::ifstream file(SourceDir() / "docs" / "metrics.md");
  std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::set<std::string> sent = names(client.Get("/metrics").body, "# TYPE (\\S+) ");
  CHECK(sent.size() > 20);
  CHECK(sent == names(page, "\n\\| `(\\w+)` \\|"));
}

TEST_CASE("The inference gateway finds its figures under vLLM's names where it is asked for",
          "[server]") {
  server::EngineStats stats;
  stats.waiting_requests = 3;
  stats.running_sequences = 2;
  stats.pages_total = 100;
  stats.pages_used = 25;
  stats.page_tokens = 16;
  stats.adapters = {.max = 4, .loaded = 3};
  stats.adapters.changed_at = 1700000000.5;
  stats.drafts.accepted_tokens = 12;
  stats.drafts.accepted_at = {8, 4};
  auto metrics_of = [&stats](const HttpServerOptions& options) {
    ServerUnderTest server(std::make_unique<FakeGeneration>(), options);
    server.generation->SetStats(stats);
    return RawClient(server.port()).Get("/metrics").body;
  };
  HttpServerOptions options;
  CHECK(metrics_of(options).find("vllm:") == std::string::npos);
  options.metric_names = server::ServerMetrics::Names::kAlsoVllm;
  const std::string text = metrics_of(options);
  constexpr const char* kLoras =
      "\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\","
      "waiting_lora_adapters=\"\"} 1700000000.5\n";
  for (const char* line :
       {"\nheddle_kv_cache_info{page_tokens=\"16\",num_pages=\"100\"} 1\n",
        "\nvllm:num_requests_waiting 3\n", "\nvllm:num_requests_running 2\n",
        "\nvllm:kv_cache_usage_perc 0.25\n",
        "\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n",
        "\nvllm:spec_decode_num_accepted_tokens_total 12\n",
        "\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 4\n",
        "\nheddle_adapters_loaded 3\n", kLoras,
        "\nheddle_thread_cpu_seconds_total{thread=\"http-io\"} "}) {
    INFO(line);
    CHECK(text.find(line) != std::string::npos);
  }
}

}  // namespace
}  // namespace heddle::test
