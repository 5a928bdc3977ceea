#include "config/load.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"

namespace heddle::config {
namespace {

using Strings = std::vector<std::string>;

// A YAML file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("heddle_config_test_" + std::to_string(::getpid()) + ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string ErrorOf(Command command, const Strings& arguments, const Strings& environment = {}) {
  absl::StatusOr<Loaded> loaded = Load(command, arguments, environment);
  REQUIRE_FALSE(loaded.ok());
  return std::string(loaded.status().message());
}

bool Contains(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("Without any source the defaults hold", "[config][unit]") {
  absl::StatusOr<Loaded> loaded = Load(kServe, Strings{"model"}, {});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.model == "model");
  CHECK(loaded->config.host == "127.0.0.1");
  CHECK(loaded->config.port == 8000);
  CHECK(loaded->config.max_body_bytes.value == 8388608);
  CHECK(loaded->config.drain_timeout.value == 30);
  CHECK(loaded->config.kv_memory.kind == MemorySize::Kind::kAuto);
}

TEST_CASE("Flags win over the environment, the environment over the file", "[config][unit]") {
  TemporaryFile file("port: 1\nmax-queue: 2\nthreads: 3\nmodel: from-file\n");
  absl::StatusOr<Loaded> loaded =
      Load(kServe, Strings{"--port", "30", "--config", file.path()},
           Strings{"HEDDLE_PORT=10", "HEDDLE_MAX_QUEUE=20", "PATH=/bin"});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.port == 30);
  CHECK(loaded->config.max_queue == 20);
  CHECK(loaded->config.threads == 3);
  CHECK(loaded->config.model == "from-file");
}

TEST_CASE("The environment can name the file", "[config][unit]") {
  TemporaryFile file("model: m\nserved_model_name: [a, b]\n");
  absl::StatusOr<Loaded> loaded = Load(kServe, {}, Strings{"HEDDLE_CONFIG=" + file.path()});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.served_model_name == Strings{"a", "b"});
}

TEST_CASE("Lists take commas and repetition; stop texts keep their commas", "[config][unit]") {
  absl::StatusOr<Loaded> serve =
      Load(kServe, Strings{"m", "--served-model-name", "a, b", "--served-model-name=c"}, {});
  REQUIRE(serve.ok());
  CHECK(serve->config.served_model_name == Strings{"a", "b", "c"});
  absl::StatusOr<Loaded> generate =
      Load(kGenerate, Strings{"m", "--stop", "a,b", "--stop", " c"}, {});
  REQUIRE(generate.ok());
  CHECK(generate->config.stop == Strings{"a,b", " c"});
}

TEST_CASE("Flags come in every usual form, before and after the model", "[config][unit]") {
  absl::StatusOr<Loaded> loaded = Load(
      kGenerate, Strings{"--json", "--temperature=0", "m", "--prompt", "--x", "--seed", "7"}, {});
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  CHECK(loaded->config.json);
  CHECK(loaded->config.sampling == NumbersByName{{"temperature", 0.0}});
  CHECK(loaded->config.model == "m");
  CHECK(*loaded->config.seed == 7);
}

TEST_CASE("--help asks for nothing else", "[config][unit]") {
  absl::StatusOr<Loaded> loaded = Load(kServe, Strings{"--help"}, {});
  REQUIRE(loaded.ok());
  CHECK(loaded->help_requested);
}

TEST_CASE("A mistyped flag is an error that names the nearest", "[config][unit]") {
  CHECK(ErrorOf(kServe, {"m", "--prot", "80"}) == "unknown option --prot; did you mean --port?");
  CHECK(ErrorOf(kServe, {"m", "--max_quue=80"}) ==
        "unknown option --max_quue; did you mean --max-queue?");
  CHECK(Contains(ErrorOf(kServe, {"m", "--frobnicate"}), "heddle serve --help"));
  // An option of another command is unknown to this one.
  CHECK(Contains(ErrorOf(kTokenize, {"m", "--port", "1"}), "unknown option --port"));
  CHECK(Contains(ErrorOf(kServe, {"m", "other"}), "unexpected argument \"other\""));
}

TEST_CASE("A mistyped key of the file is an error with its line", "[config][unit]") {
  TemporaryFile file("model: m\n\nmax-quue: 3\n");
  CHECK(ErrorOf(kServe, {"--config", file.path()}) ==
        file.path() + " line 3: unknown option max-quue; did you mean max-queue?");
}

TEST_CASE("A mistyped environment variable is a warning", "[config][unit]") {
  absl::StatusOr<Loaded> loaded =
      Load(kServe, Strings{"m"}, Strings{"HEDDLE_PROT=1", "HEDDLE_SOURCE_DIR=/x"});
  REQUIRE(loaded.ok());
  CHECK(loaded->warnings == Strings{"ignoring HEDDLE_PROT; did you mean HEDDLE_PORT?"});
}

TEST_CASE("Addresses that Kubernetes puts into a pod's environment are no options",
          "[config][unit]") {
  // Variables for Services called heddle and heddle-grpc.
  absl::StatusOr<Loaded> loaded =
      Load(kServe, Strings{"m"},
           Strings{"HEDDLE_PORT=tcp://10.96.0.7:80", "HEDDLE_PORT_80_TCP=tcp://10.96.0.7:80",
                   "HEDDLE_PORT_80_TCP_PORT=80", "HEDDLE_SERVICE_HOST=10.96.0.7",
                   "HEDDLE_SERVICE_PORT=80", "HEDDLE_SERVICE_PORT_HTTP=80",
                   "HEDDLE_GRPC_PORT=tcp://10.96.0.8:9000", "HEDDLE_GRPC_SERVICE_PORT=9000"});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.port == 8000);
  CHECK_FALSE(loaded->config.grpc_port.has_value());
  REQUIRE(loaded->warnings.size() == 2);
  CHECK(Contains(loaded->warnings[0], "ignoring HEDDLE_PORT=tcp://10.96.0.7:80"));
  CHECK(Contains(loaded->warnings[1], "ignoring HEDDLE_GRPC_PORT=tcp://10.96.0.8:9000"));
}

TEST_CASE("A bad value names its origin, the value and what would be valid", "[config][unit]") {
  CHECK(ErrorOf(kServe, {"m", "--port", "70000"}) ==
        "--port must be between 0 and 65535, not 70000");
  CHECK(ErrorOf(kServe, {"m", "--port", "http"}) == "--port must be a whole number, not \"http\"");
  CHECK(ErrorOf(kServe, {"m"}, {"HEDDLE_ISA=sse2"}) ==
        "HEDDLE_ISA must be one of auto, portable, avx2, avx2_vnni, avx512_bw, avx512, "
        "avx512_bf16, amx, not \"sse2\"");
  CHECK(ErrorOf(kServe, {"m", "--max-body-bytes", "1"}) ==
        "--max-body-bytes must be between 1 KiB and 1 GiB, not 1");
  CHECK(ErrorOf(kServe, {"m", "--port"}) == "--port needs a value");
  CHECK(ErrorOf(kServe, {"m", "--port", "1", "--port", "2"}) ==
        "--port is given 2 times; it takes one value");
  CHECK(ErrorOf(kServe, {"m", "--api-key", "a,,b"}) == "--api-key must not be empty");
}

TEST_CASE("Keys and certificates that are set to nothing are refused, not left out",
          "[config][unit]") {
  for (const char* name :
       {"api-key", "api-key-file", "admin-key", "tls-cert", "tls-key", "tls-client-ca"}) {
    INFO(name);
    std::string variable = "HEDDLE_";
    for (const char* c = name; *c != 0; ++c) {
      variable.push_back(*c == '-' ? '_' : static_cast<char>(std::toupper(*c)));
    }
    for (const char* nothing : {"", " ", "\n"}) {
      CHECK(Contains(ErrorOf(kServe, {"m"}, {variable + "=" + nothing}),
                     variable + " must not be empty"));
      CHECK(
          Contains(ErrorOf(kServe, {"m", std::string("--") + name, nothing}), "must not be empty"));
    }
  }
  // For other options an empty value in the environment counts as none.
  CHECK(Load(kServe, Strings{"m"}, Strings{"HEDDLE_CORS_ORIGIN="}).ok());
}

TEST_CASE("A value that a stronger source overrides is checked all the same", "[config][unit]") {
  CHECK(Contains(ErrorOf(kServe, {"m", "--port", "1"}, {"HEDDLE_PORT=x"}), "HEDDLE_PORT must be"));
}

TEST_CASE("Contradictions name both options", "[config][unit]") {
  std::string batch = ErrorOf(kServe, {"m", "--max-batch-tokens", "64", "--max-batch-seqs", "65"});
  CHECK(Contains(batch, "--max-batch-seqs (65)"));
  CHECK(Contains(batch, "--max-batch-tokens (64)"));
  std::string step = ErrorOf(kServe, {"m", "--max-step-tokens", "600"});
  CHECK(Contains(step, "--max-step-tokens (600)"));
  CHECK(Contains(step, "--max-batch-tokens (512)"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--max-step-tokens", "100", "--max-batch-seqs", "101"}),
                 "--max-batch-seqs (101)"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--host-kv-memory", "1GiB", "--prefix-cache", "off"}),
                 "needs --prefix-cache on"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--disk-kv", "/tmp"}), "--disk-kv needs --host-kv-memory"));
  std::string logprobs = ErrorOf(kGenerate, {"m", "--logprobs", "2"});
  CHECK(Contains(logprobs, "--logprobs needs --json"));
  CHECK(Contains(ErrorOf(kGenerate, {"m", "--regex", "a", "--grammar", "g"}), "give one of them"));
  CHECK(Contains(ErrorOf(kTokenize, {"m", "--decode", "--no-bos"}), "--decode does not go with"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--page-tokens", "24"}), "power of two"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--served-model-name", "a,a"}), "twice"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--grpc-port", "8000"}), "must not be --port (8000)"));
  CHECK(Load(kServe, Strings{"m", "--port", "0", "--grpc-port", "0"}, {}).ok());
  for (const char* origin : {"example.org", "https://example.org/", "https://", "null", "a b"}) {
    CHECK(Contains(ErrorOf(kServe, {"m", "--cors-origin", origin}), "https://example.org"));
  }
  for (const char* origin : {"*", "http://localhost:3000", "tauri://localhost"}) {
    CHECK(Load(kServe, Strings{"m", "--cors-origin", origin}, {}).ok());
  }
}

TEST_CASE(
    "An address of IPv6 may stand in brackets; what a resolver takes for this machine is refused",
    "[config][unit]") {
  for (const auto& [given, taken] :
       std::vector<std::pair<std::string, std::string>>{{"[::1]", "::1"},
                                                        {"[::]", "::"},
                                                        {"[fe80::1%eth0]", "fe80::1%eth0"},
                                                        {"::", "::"},
                                                        {"[::1", "[::1"},
                                                        {"[localhost]", "[localhost]"},
                                                        {"[]", "[]"}}) {
    absl::StatusOr<Loaded> loaded = Load(kServe, Strings{"m", "--host", given}, {});
    REQUIRE(loaded.ok());
    CHECK(loaded->config.host == taken);
  }
  for (const char* host : {"", "*"}) {
    CHECK(Contains(ErrorOf(kServe, {"m", "--host", host}), "0.0.0.0 is every network"));
  }
}

TEST_CASE("Drafters are known names, and are named once", "[config][unit]") {
  CHECK(Load(kServe, Strings{"m", "--speculate", "ngram,suffix"}, {}).ok());
  CHECK(Load(kServe, Strings{"m", "--speculate", "off"}, {}).ok());
  CHECK(Load(kServe, Strings{"m", "--speculate", "ngram,draft:some/model"}, {}).ok());
  CHECK(Load(kServe, Strings{"m", "--speculate", "mtp"}, {}).ok());
  for (const char* name : {"draft", "medusa", "eagle:"}) {
    CHECK(Contains(ErrorOf(kServe, {"m", "--speculate", name}), "needs a path"));
  }
  CHECK(Contains(ErrorOf(kServe, {"m", "--speculate", "mtp:m2"}), "takes no path"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--speculate", "draft:a,medusa:b"}), "several drafters"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--speculate", "lookup"}), "\"lookup\" is unknown"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--speculate", "off,ngram"}), "--speculate off"));
  CHECK(Contains(ErrorOf(kGenerate, {"m", "--speculate", "ngram", "--speculative-config", "{}"}),
                 "--speculative-config"));
  CHECK(Contains(ErrorOf(kServe, {"m", "--speculate-max", "65"}), "--speculate-max"));
  CHECK(Contains(ErrorOf(kBench, {"m", "--speculate", "ngram"}), "--text"));
  CHECK(Contains(ErrorOf(kBench, {"m", "--text", "file"}), "--speculate"));
}

TEST_CASE("Small steps run fewer sequences than the default", "[config][unit]") {
  for (const char* option : {"--max-batch-tokens", "--max-step-tokens"}) {
    absl::StatusOr<Loaded> loaded = Load(kServe, Strings{"m", option, "100"}, {});
    INFO(option);
    REQUIRE(loaded.ok());
    CHECK(loaded->config.max_batch_seqs == 100);
  }
  CHECK(Load(kServe, Strings{"m"}, {})->config.max_batch_seqs == 256);
  // A GPU's sizes are its own, and known when it is.
  for (const char* device : {"cuda", "auto"}) {
    const auto loaded =
        Load(kServe, Strings{"m", "--device", device, "--max-step-tokens", "600"}, {});
    REQUIRE(loaded.ok());
    CHECK(loaded->config.max_batch_tokens == 0);
    CHECK(loaded->config.max_batch_seqs == 0);
  }
}

TEST_CASE("A command that needs a model or a template says so", "[config][unit]") {
  CHECK(Contains(ErrorOf(kServe, {}), "MODEL is missing"));
  CHECK(Contains(ErrorOf(kRender, {}), "--template is missing"));
  CHECK(Contains(ErrorOf(kPlan, {}), "or --shape SHAPE"));
  CHECK(Contains(ErrorOf(kBench, {}), "or --random-weights SHAPE"));
}

TEST_CASE("Files that are no list of options fail with the place", "[config][unit]") {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c :
       {Case{"- a\n- b\n", "option: value"}, Case{"port: [1, 2", "line"},
        Case{"port: 1\nport: 2\n", "line 2: port stands there twice"},
        Case{"server:\n  port: 1\n", "not in groups"}, Case{"port:\n", "port has no value"},
        Case{"port: [1, 2]\n", "line 1: port has 2 values; it takes one"},
        Case{"prompt: hi\n", "only be given on the command line"},
        Case{"port: x\n", "line 1: port must be a whole number"},
        Case{"\x01\x02: 1\n", "line 1"}}) {
    TemporaryFile file(c.text);
    INFO(c.text);
    CHECK(Contains(ErrorOf(kServe, {"m", "--config", file.path()}), c.message));
  }
  CHECK(Contains(ErrorOf(kServe, {"m", "--config", "/does/not/exist.yaml"}),
                 "cannot open the configuration file"));
}

TEST_CASE("One file serves all commands, each taking what concerns it", "[config][unit]") {
  TemporaryFile file("port: 9000\nthreads: 2\n");
  absl::StatusOr<Loaded> loaded = Load(kGenerate, Strings{"m", "--config", file.path()}, {});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.threads == 2);
  CHECK(loaded->config.port == 8000);
  for (Command command : kAllCommands) {
    if (command == kRender) continue;  // has no option that a file could set
    INFO(CommandName(command));
    Strings arguments{"--config", file.path()};
    if (command != kHealth) arguments.insert(arguments.begin(), "m");  // it has nothing to name
    CHECK(Load(command, arguments, {}).ok());
  }
}

}  // namespace
}  // namespace heddle::config
