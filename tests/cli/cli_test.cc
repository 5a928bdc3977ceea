// The program from outside: its exit codes, what it prints where, and the commands that need no
// engine.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

fs::path BinaryDir() {
  const char* dir = std::getenv("HEDDLE_BINARY_DIR");
  return dir != nullptr ? fs::path(dir) : test::SourceDir() / "build";
}

// A folder that is deleted with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "heddle_cli_test_XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs `heddle ARGUMENTS < input` by the shell; `out_path` takes the place of a pipe for its
// output.
Outcome Run(const std::string& arguments, const std::string& input = "",
            const std::string& out_path = "") {
  TemporaryFolder folder;
  fs::path in = folder.Write("in", input);
  fs::path out = out_path.empty() ? folder.path() / "out" : fs::path(out_path);
  fs::path err = folder.path() / "err";
  std::string command = (BinaryDir() / "heddle").string() + " " + arguments + " < " + in.string() +
                        " > " + out.string() + " 2> " + err.string();
  int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out_path.empty() ? ReadFile(out) : "",
          ReadFile(err)};
}

bool IsOneLine(const std::string& text) {
  return !text.empty() && text.find('\n') == text.size() - 1;
}

TEST_CASE("--version prints name and version", "[cli][unit]") {
  Outcome outcome = Run("--version");
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out.starts_with("heddle 0."));
  const size_t build = outcome.out.find(" (build ");
  REQUIRE(build != std::string::npos);
  CHECK(outcome.out.substr(build).size() == std::string_view(" (build 0123456789abcdef)\n").size());
  CHECK(outcome.err.empty());
}

TEST_CASE("Help goes to standard output, without an error", "[cli][unit]") {
  Outcome general = Run("--help");
  CHECK(general.exit_code == 0);
  for (const char* command : {"serve", "generate", "tokenize", "inspect", "render", "bench",
                              "simulate", "plan", "trace", "tune", "health"}) {
    INFO(command);
    CHECK(general.out.find(command) != std::string::npos);
  }
  Outcome render = Run("render --help");
  CHECK(render.exit_code == 0);
  CHECK(render.out.find("--template FILE") != std::string::npos);
  CHECK(Run("help render").out == render.out);
}

TEST_CASE("demo is the model that comes along, unless something here has that name",
          "[cli][unit]") {
  Outcome demo = Run("inspect demo");
  CHECK(demo.exit_code == 0);
  // The free memory may have changed in between.
  const auto of_model = [](const Outcome& outcome) {
    return outcome.out.substr(0, outcome.out.find("this machine"));
  };
  CHECK(of_model(demo) ==
        of_model(Run("inspect " + (test::SourceDir() / "share/demo-model").string())));
  TemporaryFolder folder;
  fs::create_directory(folder.path() / "demo");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  Outcome own = Run("inspect demo");
  fs::current_path(before);
  CHECK(own.exit_code == 1);  // an empty folder
  CHECK(IsOneLine(own.err));
  CHECK(own.err.find("demo") != std::string::npos);
  CHECK(Run("serve").err.find("or demo: the small one that comes with heddle") !=
        std::string::npos);
}

TEST_CASE("Manual pages and completions are printed", "[cli][unit]") {
  CHECK(Run("--man").out.find(".TH HEDDLE 1 ") != std::string::npos);
  CHECK(Run("--man serve").out.find(".TH HEDDLE-SERVE 1 ") != std::string::npos);
  CHECK(Run("--man sreve").exit_code == 2);
  CHECK(Run("--completion bash").out.find("complete -F _heddle heddle\n") != std::string::npos);
  Outcome shell = Run("--completion tcsh");
  CHECK(shell.exit_code == 2);
  CHECK(shell.err == "heddle: --completion needs a shell: bash, zsh or fish, not \"tcsh\"\n");
  CHECK(Run("--completion").exit_code == 2);
}

TEST_CASE("A wrong call ends with 2 and one line that says what was meant", "[cli][unit]") {
  CHECK(Run("").exit_code == 2);
  Outcome command = Run("rendr");
  CHECK(command.exit_code == 2);
  CHECK(command.err == "heddle: unknown command \"rendr\"; did you mean render?\n");
  CHECK(Run("--hlep").err == "heddle: unknown command \"--hlep\"; did you mean --help?\n");
  Outcome option = Run("render --tmplate x");
  CHECK(option.exit_code == 2);
  CHECK(option.err == "heddle: unknown option --tmplate; did you mean --template?\n");
  CHECK(option.out.empty());
}

TEST_CASE("A command that fails ends with 1 and one line", "[cli][unit]") {
  Outcome missing = Run("render --template /does/not/exist.jinja");
  CHECK(missing.exit_code == 1);
  CHECK(missing.err ==
        "heddle: cannot open \"/does/not/exist.jinja\": No such file or directory\n");
  Outcome full = Run("--version", "", "/dev/full");
  CHECK(full.exit_code == 1);
  CHECK(IsOneLine(full.err));
  CHECK(Run("--help-markdown", "", "/dev/full").exit_code == 1);  // longer than a buffer
}

TEST_CASE("tune and a tune profile need a GPU, and say so before anything is loaded",
          "[cli][unit]") {
  Outcome tune = Run("tune ./no-model --device cpu");
  CHECK(tune.exit_code == 1);
  CHECK(tune.err.find("runs every step whole") != std::string::npos);
  CHECK(tune.err.find("use --device cuda:N") != std::string::npos);
  tune = Run("tune ./no-model --device cpu --tp 2");
  CHECK(tune.err.find("heddle tune is for GPUs") != std::string::npos);
  Outcome serve = Run("bench ./no-model --device cpu --tune-profile ./no-such-file");
  CHECK(serve.exit_code == 1);
  CHECK(serve.err.find("no-such-file") != std::string::npos);
}

TEST_CASE("A trace of a server that is not there ends with 1 and one line", "[cli][unit]") {
  Outcome nobody = Run("trace req-1 --url http://127.0.0.1:1");
  CHECK(nobody.exit_code == 1);
  CHECK(IsOneLine(nobody.err));
  CHECK(nobody.err.find("127.0.0.1:1") != std::string::npos);
  Outcome url = Run("trace --url https://example.org");
  CHECK(url.exit_code == 1);
  CHECK(url.err.find("http://HOST") != std::string::npos);
}

TEST_CASE("A device of no known kind is refused, with those that are", "[cli][unit]") {
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "''"}) {
    Outcome outcome = Run(std::string("generate . --prompt a --device ") + device);
    INFO(device);
    CHECK(outcome.exit_code == 1);
    CHECK(IsOneLine(outcome.err));
    CHECK(outcome.err.find("valid are auto, cpu, cuda and cuda:N") != std::string::npos);
  }
}

TEST_CASE("An empty --prompt is the prompt: standard input is not read", "[cli][unit]") {
  const std::string model = (test::SourceDir() / "share/demo-model").string();
  // The demo model puts no token before a text.
  Outcome empty = Run("generate " + model + " --prompt '' --max-tokens 1", "hello");
  CHECK(empty.exit_code == 1);
  CHECK(empty.err.find("The prompt has no tokens") != std::string::npos);
  CHECK(Run("generate " + model + " --prompt '' --chat --max-tokens 1", "hello").exit_code == 0);
  CHECK(Run("generate " + model + " --max-tokens 1", "hello").exit_code == 0);
}

TEST_CASE("A wrong schema, grammar or expression is named by its option and file", "[cli][unit]") {
  TemporaryFolder folder;
  const std::string file = folder.Write("form.txt", "{").string();
  const std::string generate =
      "generate " + (test::SourceDir() / "share/demo-model").string() + " --prompt a ";
  for (const char* option : {"--json-schema ", "--grammar "}) {
    Outcome outcome = Run(generate + option + file);
    INFO(option);
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.err.starts_with("heddle: " + (option + file) + ": "));
  }
  CHECK(Run(generate + "--regex '('").err.starts_with("heddle: --regex: "));
}

TEST_CASE("A GPU that is not there is named in one line", "[cli][unit]") {
  Outcome outcome = Run("generate " + (test::SourceDir() / "share/demo-model").string() +
                        " --prompt a --device cuda:4095");
  CHECK(outcome.exit_code == 1);
  CHECK(IsOneLine(outcome.err));
  const bool says_why = outcome.err.find("CUDA") != std::string::npos ||
                        outcome.err.find("NVIDIA") != std::string::npos;
  CHECK(says_why);
}

TEST_CASE("render prints exactly what the template gives", "[cli][unit]") {
  TemporaryFolder folder;
  std::string chat =
      folder
          .Write("chat.jinja",
                 "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                 "{% if tools %}{{ tools | tojson }}{% endif %}"
                 "{% if add_generation_prompt %}[assistant]{% endif %}")
          .string();
  Outcome outcome = Run("render --template " + chat, R"({"bos_token": "<s>",
      "messages": [{"role": "user", "content": "Grüße"}],
      "tools": [{"z": 1, "a": 2}], "add_generation_prompt": true})");
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == R"(<s>[user]Grüße[{"z": 1, "a": 2}][assistant])");
}

TEST_CASE("render names the file and the line, or what is wrong with its input", "[cli][unit]") {
  TemporaryFolder folder;
  std::string bad = folder.Write("bad.jinja", "ok\n{% if %}").string();
  Outcome syntax = Run("render --template " + bad, "{}");
  CHECK(syntax.exit_code == 1);
  CHECK(syntax.err == "heddle: " + bad + ": line 2: expected an expression, got '%}'\n");
  std::string good = folder.Write("good.jinja", "x").string();
  Outcome json = Run("render --template " + good, "{\"messages\": [");
  CHECK(json.exit_code == 1);
  CHECK(json.err.find("not JSON, at byte 15") != std::string::npos);
  Outcome array = Run("render --template " + good, "[]");
  CHECK(array.err.find("expected an object") != std::string::npos);
}

TEST_CASE("tokenize gives the ids of a real model's vectors, and decodes them", "[cli][unit]") {
  if (!test::HasSharedData("stories260K/tokenizer_tests.json")) {
    WARN("skipped: needs shared/data/stories260K");
    return;
  }
  std::string folder = test::SharedDataOrSkip("stories260K").string();
  std::string model = folder;
  nlohmann::json tests =
      nlohmann::json::parse(ReadFile(fs::path(folder) / "tokenizer_tests.json"))["tests"];
  std::string lines;
  std::string ids;
  std::string ids_with_bos;
  std::string texts;
  for (const auto& vector : tests) {
    lines += vector["text"].dump() + "\n";
    ids += vector["ids"].dump() + "\n";
    ids_with_bos += vector["ids_with_bos"].dump() + "\n";
    texts += vector["decoded"].dump() + "\n";
  }
  Outcome encoded = Run("tokenize " + model + " --jsonl --no-bos", lines);
  CHECK(encoded.exit_code == 0);
  CHECK(encoded.out == ids);
  CHECK(Run("tokenize " + model + " --jsonl", lines).out == ids_with_bos);
  Outcome decoded = Run("tokenize " + model + " --decode --jsonl", ids);
  CHECK(decoded.exit_code == 0);
  CHECK(decoded.out == texts);
  Outcome wrong = Run("tokenize " + model + " --decode", "[1]\n[1, 512]\n");
  CHECK(wrong.exit_code == 1);
  CHECK(wrong.err == "heddle: line 2: expected token ids from 0 to 511, got \"512\"\n");
}

TEST_CASE("inspect says what a model is, tensor by tensor, and what quantising costs",
          "[cli][unit]") {
  const std::string model = (test::SourceDir() / "tests/demo_model/moe").string();
  const Outcome text = Run("inspect " + model + " --weights int8 --tensors");
  INFO(text.err);
  REQUIRE(text.exit_code == 0);
  for (const char* line : {"\nexperts        8 of width 48 in 6 layers, 4 for each token\n",
                           "\nparameters     2.17 million\n", "\nmodel.norm.weight ",
                           " [192] BF16\n", " [192, 192] BF16, as q8_0 with a relative error of 0.",
                           "quantising changes the weights by"}) {
    INFO(line);
    CHECK(text.out.find(line) != std::string::npos);
  }
  const auto json = nlohmann::json::parse(Run("inspect " + model + " --json --tensors").out);
  CHECK(json["parameters"] == 2174400);
  CHECK(json["unused_tensors"].empty());
  CHECK(json["tensors"].size() == 2 + 6 * (4 + 2 + 1 + 8 * 3));
  CHECK(json["tensors"][0]["kept_as"] == "bf16");
}

TEST_CASE("bench prints an object for each batch size, with shares of measured limits",
          "[cli][unit]") {
  std::string model = (test::SourceDir() / "share/demo-model").string();
  Outcome outcome = Run("bench " + model +
                        " --prompt-tokens 40 --output-tokens 3 --batch 1,3 --repeat 2 --json "
                        "--max-batch-tokens 32 --threads 1");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  std::istringstream lines(outcome.out);
  for (int batch : {1, 3}) {
    std::string line;
    REQUIRE(std::getline(lines, line));
    nlohmann::json json = nlohmann::json::parse(line);
    CHECK(json["batch"] == batch);
    CHECK(json["weights"] == "bf16");
    for (const char* field :
         {"prefill_tok_s", "decode_tok_s", "read_gb_s", "limit_read_gb_s", "gops", "limit_gops"}) {
      INFO(field);
      CHECK(json[field].get<double>() > 0);
    }
    CHECK(json["gops"] <= json["limit_gops"]);
  }
  CHECK(lines.peek() == EOF);
}

TEST_CASE("inspect and plan name the cache's type that the model has on this machine",
          "[cli][unit]") {
  const std::string model = (test::SourceDir() / "share/demo-model").string();
  const auto type_of = [](const std::string& arguments) {
    const Outcome outcome = Run(arguments + " --json");
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return nlohmann::json::parse(outcome.out)["kv_type"].get<std::string>();
  };
  const std::string loaded = type_of("bench " + model + " --prompt-tokens 8 --output-tokens 1");
  CHECK(type_of("inspect " + model) == loaded);
  CHECK(type_of("plan " + model) == loaded);
  CHECK(type_of("plan --shape qwen2.5-0.5b --hardware h100") == "f16");
}

TEST_CASE("bench refuses what it cannot measure, and says what to change", "[cli][unit]") {
  std::string model = (test::SourceDir() / "share/demo-model").string();
  Outcome both = Run("bench " + model + " --random-weights tinyllama-1.1b");
  CHECK(both.exit_code == 2);
  CHECK(both.err.find("does not go with --random-weights") != std::string::npos);
  Outcome batch = Run("bench --random-weights tinyllama-1.1b --batch 1,x");
  CHECK(batch.exit_code == 2);
  CHECK(batch.err.find("--batch must be whole numbers from 1 to 4096") != std::string::npos);
  Outcome context = Run("bench " + model + " --prompt-tokens 5000");
  CHECK(context.exit_code == 1);
  CHECK(context.err.find("--prompt-tokens (5000)") != std::string::npos);
  CHECK(context.err.find("2048") != std::string::npos);
  Outcome shape = Run("bench --random-weights tinylama");
  CHECK(shape.exit_code == 1);
  CHECK(shape.err.find("tinyllama-1.1b, llama-3.2-1b") != std::string::npos);
  Outcome blocks = Run("bench --random-weights qwen2.5-0.5b --weights q4_k");
  CHECK(blocks.exit_code == 1);
  CHECK(blocks.err.find("rows of 896 are not whole blocks of 256") != std::string::npos);
}

TEST_CASE("simulate runs a load, prints it as JSON and draws it", "[cli][unit]") {
  TemporaryFolder folder;
  const std::string plot = (folder.path() / "load.svg").string();
  Outcome outcome =
      Run("simulate --shape tinyllama-1.1b --weights q4_0 --hardware cpu-2core --clients 4 "
          "--requests 40 --prompt-tokens 100 --output-tokens 20 --json --plot " +
          plot);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["done"] == 40);
  CHECK(json["output_tokens"] == 800);
  CHECK(json["ttft_ms"]["p50"].get<double>() > 0);
  CHECK(ReadFile(plot).starts_with("<svg "));
}

TEST_CASE("simulate refuses lengths that the context would cut", "[cli][unit]") {
  const std::string simulate = "simulate --shape tinyllama-1.1b --hardware cpu-2core --requests 1 ";
  Outcome prompt = Run(simulate + "--prompt-tokens 3000");
  CHECK(prompt.exit_code == 1);
  CHECK(
      prompt.err ==
      "heddle: --prompt-tokens 3000 and --output-tokens 64 do not fit into the context of 2048\n");
  CHECK(Run(simulate + "--prompt-tokens 1984").exit_code == 0);
  Outcome prefix = Run(simulate + "--prompt-tokens 1984 --prefix-tokens 1");
  CHECK(prefix.err.find("--prefix-tokens 1, --prompt-tokens 1984") != std::string::npos);
}

TEST_CASE("simulate refuses a wrong line of a trace, and names it", "[cli][unit]") {
  TemporaryFolder folder;
  const std::string trace =
      folder
          .Write("trace.jsonl",
                 "{\"arrival_s\": 0, \"prompt_tokens\": 5, \"output_tokens\": 5}\n"
                 "{\"arrival_s\": 0, \"prompt_tokens\": \"five\"}\n")
          .string();
  const std::string simulate = "simulate --shape tinyllama-1.1b --hardware cpu-2core --trace ";
  Outcome outcome = Run(simulate + trace);
  CHECK(outcome.exit_code == 1);
  CHECK(IsOneLine(outcome.err));
  CHECK(outcome.err.find("trace.jsonl:2: \"prompt_tokens\" is \"five\"; expected a whole number") !=
        std::string::npos);
  CHECK(Run(simulate + "no_such_file").exit_code == 1);
  CHECK(Run(simulate + trace + " --rate 3").exit_code == 2);
}

TEST_CASE("plan divides a model among ranks, and says where one is faster", "[cli][unit]") {
  const std::string plan =
      "plan --shape tinyllama-1.1b --weights q4_0 --kv-memory 1GiB --hardware cpu-2core --tp ";
  const Outcome one = Run(plan + "1");
  CHECK(one.exit_code == 0);
  CHECK(one.out.find("ranks ") == std::string::npos);
  const Outcome two = Run(plan + "2");
  CHECK(two.out.find("ranks     2, each with 326.3 MiB of weights and 511.8 MiB of KV cache") !=
        std::string::npos);
  CHECK(two.out.find("warning   one rank is faster here") != std::string::npos);
  const Outcome json = Run(plan + "3 --json");
  CHECK(json.out.find("\"one_rank_is_faster\":true") != std::string::npos);
  CHECK(json.out.find("\"ranks\":[{\"weight_bytes\":") != std::string::npos);
  CHECK(Run(plan + "2 --rank-cpus 0").err.find("--rank-cpus has 1 lists for 2 ranks") !=
        std::string::npos);
}

TEST_CASE("plan divides a model among machines, and says what the network costs", "[cli][unit]") {
  const std::string plan = "plan --shape tinyllama-1.1b --weights q4_0 --hardware cpu-2core ";
  const std::string machines = plan + "--device-memory 4GiB --link-rate 1 --link-latency 200 ";
  const Outcome two = Run(machines + "--pp 2");
  CHECK(two.exit_code == 0);
  CHECK(two.out.find("ranks     2 in 2 stages of 11 and 11 layers, each with ") !=
        std::string::npos);
  // 2048 features of 4 bytes at 1 Gbit/s.
  CHECK(two.out.find("link      200 us and 1 Gbit/s: a row of activations takes 266 us") !=
        std::string::npos);
  CHECK(two.out.find("warning   one machine is faster here") != std::string::npos);
  // A model that one machine cannot hold has no alternative.
  const Outcome large =
      Run("plan --shape llama-3.1-8b --weights q4_0 --hardware cpu-2core --device-memory 4GiB "
          "--link-rate 10 --pp 3 --max-context 8192");
  CHECK(large.exit_code == 0);
  CHECK(large.out.find("ranks     3 in 3 stages of ") != std::string::npos);
  CHECK(large.out.find("warning") == std::string::npos);
  const Outcome small =
      Run("plan --shape llama-3.1-8b --weights q4_0 --hardware cpu-2core --device-memory 2GiB "
          "--link-rate 10 --pp 2");
  CHECK(small.exit_code == 1);
  CHECK(small.err.find("rank 0 of 2: ") != std::string::npos);
  CHECK(Run(plan + "--pp 2").out.find("warning   one rank is faster here") != std::string::npos);
  CHECK(Run(plan + "--link-rate 1").err.find("there is no other rank") != std::string::npos);
  CHECK(Run(plan + "--pp 2 --link-latency 5").err.find("goes with --link-rate") !=
        std::string::npos);
  // GPUs of several machines exchange rows through the host: 512 of 4096 features of 2 bytes, in
  // two places each way.
  const std::string gpus = "plan --shape llama-3.1-8b --weights q4_0 --hardware h200 --pp 2 ";
  CHECK(Run(gpus + "--link-rate 100 --max-batch-tokens 512")
            .out.find("host      16.0 MiB of page-locked memory for each GPU") !=
        std::string::npos);
  CHECK(Run(gpus).out.find("page-locked") == std::string::npos);
  // Where they share layers: parts of sums of 4,096 rows (32 MiB) and of 1,024 rows of half of the
  // logits each (250.5 MiB), of both ranks, in two places.
  const std::string shared = "plan --shape llama-3.1-8b --weights q4_0 --hardware h200 --tp 2 ";
  CHECK(Run(shared + "--link-rate 100").out.find("host      1002.0 MiB of page-locked memory") !=
        std::string::npos);
  const Outcome load =
      Run("simulate --shape tinyllama-1.1b --weights q4_0 --hardware cpu-2core "
          "--pp 2 --link-rate 1 --requests 20 --clients 4");
  CHECK(load.exit_code == 0);
}

TEST_CASE("plan says what fits, what limits it, and what would do", "[cli][unit]") {
  const std::string plan = "plan --shape llama-3.1-8b --users 64 --context 8192 --hardware ";
  Outcome large = Run(plan + "h200");
  CHECK(large.exit_code == 0);
  CHECK(large.out.find("fits      64 users of 8128 + 64 tokens\n") != std::string::npos);
  Outcome small = Run(plan + "rtx4090");
  CHECK(small.exit_code == 0);
  CHECK(small.out.find("does not fit: 64 users") != std::string::npos);
  // 64 users of 8192 tokens of 128 KiB.
  CHECK(small.out.find("--kv-memory 64.0 GiB") != std::string::npos);
  Outcome none = Run(plan + "h200 --device-memory 8GiB");
  CHECK(none.exit_code == 1);
  CHECK(none.err.find("weights need 15.0 GiB") != std::string::npos);
  Outcome both = Run(plan + "h200 --tp 2");
  CHECK(both.exit_code == 0);
  CHECK(
      both.out.find("link      5 us and 3600 Gbit/s: a row of activations takes 5 us (predicted") !=
      std::string::npos);
  const Outcome apart = Run(plan + "rtx4090 --tp 2");
  INFO(apart.out << apart.err);
  CHECK(apart.exit_code == 0);
  CHECK(apart.out.find("(predicted: these GPUs meet through the host's memory)") !=
        std::string::npos);
  CHECK(apart.out.find("page-locked memory for each GPU") != std::string::npos);
  CHECK(Run(plan + "h201").err.find("there are host, h200") != std::string::npos);
}

}  // namespace
}  // namespace heddle
