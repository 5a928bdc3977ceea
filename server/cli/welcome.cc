#include "server/cli/welcome.h"

#include <unistd.h>

#include <chrono>
#include <string_view>

#include "absl/strings/str_format.h"
#include "base/bounded_write.h"
#include "base/message.h"

namespace heddle::server {
namespace {

// HOST:PORT, where the colons of an IPv6 address are in brackets.
std::string Authority(const std::string& host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? base::StrCat("[", host, "]:", port) : base::StrCat(host, ":", port);
}

std::string GrpcLine(const config::ServerConfig& config, uint16_t port) {
  return port == 0 ? "" : base::StrCat("\ngRPC      ", Authority(config.host, port));
}

// The time of the warm-up, if the device needed one.
std::string WarmUpText(const engine::ModelInfo& model) {
  if (model.warm_up_seconds == 0) return "";
  return absl::StrFormat(", %.2f s of it to warm up", model.warm_up_seconds);
}

std::string UrlText(const config::ServerConfig& config, const std::string& address, uint16_t port) {
  const std::string_view scheme = config.tls_cert.empty() ? "http" : "https";
  return base::StrCat(scheme, "://", Authority(address, port));
}

// The address at which a client on this machine reaches a server that listens on `host`.
std::string ReachableAddress(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

// A first request that the model can answer: a question or, without a chat template, the beginning
// of a text.
std::string FirstRequest(const config::ServerConfig& config, std::string_view model_id,
                         const std::string& url, bool has_chat_template) {
  const std::string_view key = HasKeys(config) ? " -H 'Authorization: Bearer KEY'" : "";
  const std::string_view path = has_chat_template ? "/v1/chat/completions" : "/v1/completions";
  const std::string_view asked =
      has_chat_template ? R"("messages": [{"role": "user", "content": "What is 7 + 5?"}])"
                        : R"("prompt": "Once upon a time", "max_tokens": 64)";
  return base::StrCat("  curl ", url, path, " -H 'Content-Type: application/json'", key,
                      " \\\n    -d '{\"model\": \"", model_id, "\", ", asked, "}'\n");
}

}  // namespace

bool HasKeys(const config::ServerConfig& config) {
  return !config.api_key.empty() || !config.api_key_file.empty();
}

void PrintWelcome(const config::Config& config, const EngineSession& session,
                  const ServingFacts& facts, const Logger& log) {
  const std::string url = UrlText(config, config.host, facts.port);
  if (config.log_format == config::LogFormat::kJson) {
    log.Info("serving", {{"version", HEDDLE_VERSION},
                         {"model", facts.model_id},
                         {"family", session.model.model.spec.family},
                         {"weights", session.model.formats},
                         {"device", session.model.device},
                         {"memory", engine::DescribeCapacity(session.model.capacity)},
                         {"url", url},
                         {"grpc_port", int64_t{facts.grpc_port}},
                         {"ready_seconds", facts.ready_seconds}});
    return;
  }
  const std::string near = UrlText(config, ReachableAddress(config.host), facts.port);
  const bool has_chat_template = session.codec->has_chat_template();
  const std::string_view missing =
      has_chat_template ? ""
                        : "\n          no chat template: it goes on with texts, and has no chats";
  std::string text = base::StrCat(
      "model     ", facts.model_id, ": ", session.model.model.spec.family, ", ",
      session.model.formats, missing, "\ndevice    ", session.model.device, "\nmemory    ",
      engine::DescribeCapacity(session.model.capacity), "\nready in  ",
      absl::StrFormat("%.2f s", facts.ready_seconds), WarmUpText(session.model), "\nserving   ",
      url, "/v1 (Ctrl-C ends it)", GrpcLine(config, facts.grpc_port), "\n\nTry ", near,
      "/ in a browser, or:\n", FirstRequest(config, facts.model_id, near, has_chat_template), "\n");
  // Gives up soon without a reader, because this thread has to handle signals.
  constexpr std::chrono::milliseconds kLimit{500};
  base::WriteWithin(STDOUT_FILENO, text, kLimit);
}

}  // namespace heddle::server
