// A whole HTTP server on a free port, with a byte-level codec and a fake engine.
#pragma once

#include <memory>
#include <string>

#include "base/check.h"
#include "server/http/http_server.h"
#include "tests/server/byte_codec.h"
#include "tests/server/fake_generation.h"
#include "tests/server/raw_client.h"

namespace heddle::test {

inline server::ServedModel TestModel() {
  server::ServedModel model;
  model.id = "test-model";
  model.aliases = {"gpt-test"};
  model.fingerprint = "fp_test";
  model.created = 1700000000;
  model.max_context = 256;
  model.embedding_size = 4;
  return model;
}

struct ServerUnderTest {
  explicit ServerUnderTest(const server::HttpServerOptions& options = {})
      : ServerUnderTest(std::make_unique<FakeGeneration>(), options) {}
  explicit ServerUnderTest(FakeGeneration::Reply reply,
                           const server::HttpServerOptions& options = {},
                           const server::TlsContext* tls = nullptr)
      : ServerUnderTest(std::make_unique<FakeGeneration>(std::move(reply)), options, tls) {}
  // `other_codec`: instead of `codec`; outlives the server.
  ServerUnderTest(std::unique_ptr<FakeGeneration> fake, server::HttpServerOptions options,
                  const server::TlsContext* tls = nullptr,
                  const server::TextCodec* other_codec = nullptr)
      : generation(std::move(fake)) {
    options.port = 0;
    auto started = server::HttpServer::Start(
        options, {generation.get(), other_codec == nullptr ? &codec : other_codec, &model, &metrics,
                  &log, tls});
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    http = *std::move(started);
    http->SetReady(true);
  }
  // Stops the engine's thread first: it may still be calling sinks of the server.
  ~ServerUnderTest() { http->Stop(); }

  uint16_t port() const { return http->port(); }

  server::ServedModel model = TestModel();
  ByteCodec codec;
  server::ServerMetrics metrics{"test-model", "test"};
  server::Logger log{server::LogFormat::kText, server::LogLevel::kOff};
  std::unique_ptr<FakeGeneration> generation;
  std::unique_ptr<server::HttpServer> http;
};

}  // namespace heddle::test
