// HTTPS over real sockets, with an authority that the test makes: who is let in, who is not, and
// that clients that break the handshake do the server no harm.
#include <openssl/ssl.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "server/tls/tls_context.h"
#include "tests/server/http/tls_client.h"
#include "tests/server/server_under_test.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {
namespace {

using server::FinishReason;
using server::HttpServerOptions;
using server::TlsContext;
using server::TlsOptions;
using std::chrono::milliseconds;

constexpr std::string_view kHealth = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";

// The files of a server, in a folder of their own.
struct Files {
  Files() { Write(Certified({}, &authority)); }

  void Write(const Certified& server) {
    Put("cert.pem", server.CertPem());
    Put("key.pem", server.KeyPem());
  }
  std::string Put(std::string_view name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }
  TlsOptions Options(const std::string& client_ca = "") const {
    return {(folder / "cert.pem").string(), (folder / "key.pem").string(), client_ca};
  }
  std::unique_ptr<TlsContext> Load(const std::string& client_ca = "") {
    auto loaded = TlsContext::Load(Options(client_ca),
                                   [this](const std::string& text) { warnings.push_back(text); });
    HEDDLE_CHECK(loaded.ok(), std::string(loaded.status().message()));
    return *std::move(loaded);
  }

  TempDir folder;
  Certified authority = MakeAuthority("Test authority");
  std::vector<std::string> warnings;
};

double HandshakeFailures(const ServerUnderTest& server) {
  constexpr std::string_view kName = "\nheddle_tls_handshake_failures_total ";
  const std::string text = server.metrics.Render({}, {});
  const size_t at = text.find(kName);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + kName.size());
}

std::string Say(const server::GenerationRequest&) { return "hi there"; }

TEST_CASE("A client that trusts the authority is answered over TLS 1.3, again and again",
          "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  TlsClient client(server.port(), {.trusted = &files.authority, .protocols = "\x08http/1.1"});
  REQUIRE(client.connected());
  CHECK(client.version() == "TLSv1.3");
  CHECK(client.protocol() == "http/1.1");
  CHECK(client.Ask(kHealth).starts_with("HTTP/1.1 200 OK"));
  CHECK(client.Ask(kHealth).ends_with(R"({"status":"ok"})"));
  CHECK(files.warnings.empty());
}

TEST_CASE("Bodies of many records go through TLS in both directions", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  TlsClient client(server.port(), {.trusted = &files.authority});
  const std::string text(300'000, 'a');
  const std::string answer = client.Ask(PostText("/tokenize", R"({"prompt":")" + text + R"("})"));
  CHECK(answer.starts_with("HTTP/1.1 200 OK"));
  CHECK(answer.find(R"("count":300001)") != std::string::npos);
}

TEST_CASE("A stream comes through TLS event by event, and leaving it cancels the request",
          "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(std::make_unique<FakeGeneration>(), {}, tls.get());
  {
    TlsClient client(server.port(), {.trusted = &files.authority});
    client.Send(PostText("/v1/completions", R"({"prompt":"a","stream":true})"));
    server.generation->WaitForRequest(0);
    server.generation->EmitText(0, "one");
    CHECK(client.ReadUntil("one").ends_with("one"));
    server.generation->EmitText(0, "two");
    CHECK(client.ReadUntil("two").ends_with("two"));
  }
  CHECK(server.generation->WaitForCancel(0));
}

TEST_CASE("The end of a connection is announced by close_notify", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  TlsClient client(server.port(), {.trusted = &files.authority});
  const std::string answer =
      client.Ask("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.1 200 OK"));
  CHECK(client.ReadsEnd());
}

TEST_CASE("A client that trusts another authority turns away, and is counted", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  const Certified other = MakeAuthority("Another authority");
  CHECK_FALSE(TlsClient(server.port(), {.trusted = &other}).connected());
  CHECK(TlsClient(server.port(), {.trusted = &files.authority}).Ask(kHealth) != "");
  CHECK(HandshakeFailures(server) == 1);
}

TEST_CASE("With --tls-client-ca only clients with a certificate of that authority are answered",
          "[server][tls]") {
  Files files;
  const Certified clients = MakeAuthority("Clients");
  const Certified strangers = MakeAuthority("Strangers");
  const Certified member({.name = "member"}, &clients);
  const Certified stranger({.name = "stranger"}, &strangers);
  const Certified expired({.name = "late", .valid_from_days = -9, .valid_to_days = -2}, &clients);
  auto tls = files.Load(files.Put("clients.pem", clients.CertPem()));
  ServerUnderTest server(Say, {}, tls.get());
  for (int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient::Options options{.trusted = &files.authority, .max_version = version};
    CHECK(TlsClient(server.port(), options).Ask(kHealth).empty());
    for (const Certified* wrong : {&stranger, &expired}) {
      options.identity = wrong;
      CHECK(TlsClient(server.port(), options).Ask(kHealth).empty());
    }
    options.identity = &member;
    CHECK(TlsClient(server.port(), options).Ask(kHealth).starts_with("HTTP/1.1 200 OK"));
  }
  CHECK(HandshakeFailures(server) == 6);
}

TEST_CASE("Plain HTTP at the TLS port is told so in plain HTTP", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  RawClient client(server.port());
  client.Send(kHealth);
  RawResponse response = client.Read();
  CHECK(response.status == 400);
  CHECK(response.body.find("speaks HTTPS") != std::string::npos);
  CHECK(client.ReadsEnd());
}

TEST_CASE("HTTP/2 is spoken with clients that offer it", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  for (const char* offer : {"\x02h2", "\x02h2\x08http/1.1", "\x08http/1.1\x02h2"}) {
    TlsClient client(server.port(), {.protocols = offer});
    CHECK(client.protocol() == "h2");
    // A header that goes on where none has begun ends the connection. Before, the server has sent
    // its settings, whose type is the fourth byte of their frame.
    const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const std::string answer = client.Ask(preface + std::string("\0\0\0\x09\4\0\0\0\1", 9));
    REQUIRE(answer.size() > 9);
    CHECK(answer[3] == 4);
  }
}

TEST_CASE("TLS 1.1, and a client that wants no protocol of ours, are refused", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  CHECK_FALSE(TlsClient(server.port(), {.max_version = TLS1_1_VERSION}).connected());
  CHECK_FALSE(TlsClient(server.port(), {.protocols = "\x02h3"}).connected());
  CHECK(TlsClient(server.port(), {.max_version = TLS1_2_VERSION}).version() == "TLSv1.2");
}

TEST_CASE("Half a handshake, and silence, end after the header's time", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  HttpServerOptions options;
  options.header_timeout = milliseconds(60);
  ServerUnderTest server(Say, options, tls.get());
  RawClient half(server.port());
  half.Send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01", 8));
  CHECK(half.ReadsEnd());
  RawClient silent(server.port());
  CHECK(silent.ReadsEnd());
  TlsClient late(server.port(), {.trusted = &files.authority});
  CHECK(late.connected());
  CHECK(late.ReadUntil("anything").empty());
}

TEST_CASE("Random bytes in place of a handshake leave the server as it was", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 400, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them begin like a record of a handshake.
    if (i % 2 == 0) bytes.insert(0, std::string("\x16\x03\x03\x01\x00\x01\x00\x00", 8));
    RawClient client(server.port());
    client.Send(bytes);
    i % 3 == 0 ? client.Reset() : client.Close();
  }
  CHECK(TlsClient(server.port(), {.trusted = &files.authority}).Ask(kHealth) != "");
}

TEST_CASE("New certificates serve new connections, old connections go on", "[server][tls]") {
  Files files;
  auto tls = files.Load();
  ServerUnderTest server(Say, {}, tls.get());
  TlsClient old(server.port(), {.trusted = &files.authority});
  CHECK(old.peer_name() == "localhost");
  const Certified renewed({.name = "renewed"}, &files.authority);
  files.Write(renewed);
  REQUIRE(tls->Reload().ok());
  CHECK(TlsClient(server.port(), {}).peer_name() == "renewed");
  CHECK(old.Ask(kHealth).starts_with("HTTP/1.1 200 OK"));
  files.Put("cert.pem", "nonsense");
  const absl::Status status = tls->Reload();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()).find("cert.pem: not a certificate") != std::string::npos);
  CHECK(TlsClient(server.port(), {}).peer_name() == "renewed");
}

std::string LoadError(const TlsOptions& options) {
  auto loaded = TlsContext::Load(options, [](const std::string&) {});
  return loaded.ok() ? "" : std::string(loaded.status().message());
}

TEST_CASE("Files that do not do are errors that name the option, the file and the fault",
          "[server][tls]") {
  Files files;
  const TlsOptions good = files.Options();
  const Certified other({}, &files.authority);
  TlsOptions options = good;
  options.cert_file = "/nowhere/cert.pem";
  CHECK(LoadError(options) ==
        "--tls-cert /nowhere/cert.pem: there is no such file, or it cannot be read");
  options = good;
  options.key_file = files.Put("other.pem", other.KeyPem());
  CHECK(LoadError(options) == "--tls-key " + options.key_file +
                                  ": does not belong to the certificate in " + good.cert_file);
  options.key_file = files.Put("secret.pem", other.KeyPem("open sesame"));
  CHECK(LoadError(options) ==
        "--tls-key " + options.key_file + ": the key has a passphrase; give one without");
  options.key_file = files.Put("noise.pem", "noise");
  CHECK(LoadError(options).starts_with("--tls-key " + options.key_file +
                                       ": not a private key in PEM format ("));
  options = good;
  options.client_ca_file = files.Put("noise.pem", "noise");
  CHECK(LoadError(options).starts_with("--tls-client-ca " + options.client_ca_file +
                                       ": not certificates in PEM format ("));
}

TEST_CASE("A certificate outside its days is taken with a warning", "[server][tls]") {
  Files files;
  files.Write(Certified({.valid_from_days = -9, .valid_to_days = -2}, &files.authority));
  files.Load();
  REQUIRE(files.warnings.size() == 1);
  CHECK(files.warnings[0].find("has expired") != std::string::npos);
  files.Write(Certified({.valid_from_days = 2, .valid_to_days = 9}, &files.authority));
  files.Load();
  REQUIRE(files.warnings.size() == 2);
  CHECK(files.warnings[1].find("is not valid yet") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
