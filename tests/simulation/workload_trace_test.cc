#include "server/simulation/workload_trace.h"

#include "catch2/catch.hpp"
#include "server/simulation/profile.h"

namespace heddle::server {
namespace {

std::string TraceError(const std::string& text) {
  const auto trace = ReadWorkloadTrace(text, "trace.jsonl");
  REQUIRE_FALSE(trace.ok());
  CHECK(absl::IsInvalidArgument(trace.status()));
  return std::string(trace.status().message());
}

constexpr char kGood[] = R"({"arrival_s": 0.5, "prompt_tokens": 10, "output_tokens": 3})";

TEST_CASE("A trace is read field by field, blank lines left out", "[simulation]") {
  const auto trace = ReadWorkloadTrace(
      R"({"arrival_s": 1.25, "prompt_tokens": 812, "output_tokens": 96, "prefix_group": "a", "prefix_tokens": 640}

{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 0, "n": 4, "priority": -2, "deadline_ms": 1500, "workflow": "w", "tenant": 77}
{"arrival_s": 2, "prompt_tokens": 900, "output_tokens": 5, "prefix_group": "a", "prefix_tokens": 640})"
      "\r\n",
      "trace.jsonl");
  REQUIRE(trace.ok());
  REQUIRE(trace->size() == 3);
  CHECK((*trace)[0].arrival_us == 1'250'000);
  CHECK((*trace)[0].prompt_tokens == 812);
  CHECK((*trace)[0].output_tokens == 96);
  CHECK((*trace)[0].prefix_tokens == 640);
  CHECK((*trace)[0].prefix_group != 0);
  CHECK((*trace)[2].prefix_group == (*trace)[0].prefix_group);
  CHECK((*trace)[1].branches == 4);
  CHECK((*trace)[1].prefix_group == 0);
  CHECK((*trace)[1].priority == -2);
  CHECK((*trace)[1].deadline_us == 1'500'000);
  CHECK((*trace)[1].workflow != 0);
  CHECK((*trace)[1].tenant != 0);
  CHECK((*trace)[0].tenant == 0);
}

TEST_CASE("Branches of a trace have all of their fields, or none", "[simulation]") {
  const std::string head = R"({"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 30, )";
  const auto trace = ReadWorkloadTrace(
      head + R"("forks": 4, "fork_at": 10, "branch_tokens": 20, "join": "concurrent"})" + "\n" +
          head + R"("forks": 2, "fork_at": 29, "branch_tokens": 1})",
      "trace.jsonl");
  REQUIRE(trace.ok());
  CHECK((*trace)[0].forks == 4);
  CHECK((*trace)[0].fork_at == 10);
  CHECK((*trace)[0].branch_tokens == 20);
  CHECK((*trace)[0].joins_side_by_side);
  CHECK_FALSE((*trace)[1].joins_side_by_side);
  for (const char* rest : {R"("forks": 4})", R"("join": "text"})", R"("forks": 4, "fork_at": 10})",
                           R"("forks": 65, "fork_at": 10, "branch_tokens": 20})",
                           R"("forks": 4, "fork_at": 30, "branch_tokens": 20})",
                           R"("forks": 4, "fork_at": 10, "branch_tokens": 0})",
                           R"("forks": 4, "fork_at": 10, "branch_tokens": 1, "n": 2})",
                           R"("forks": 4, "fork_at": 10, "branch_tokens": 1, "join": "other"})"}) {
    INFO(rest);
    CHECK(TraceError(head + rest).starts_with("trace.jsonl:1"));
  }
}

TEST_CASE("A wrong line is refused with its place, what was found and what is expected",
          "[simulation]") {
  const std::string good = std::string(kGood) + "\n";
  CHECK(TraceError(good + R"({"arrival_s": 1, "prompt_tokens": -3, "output_tokens": 1})") ==
        "trace.jsonl:2: \"prompt_tokens\" is -3; expected a whole number from 1 to 16777216");
  CHECK(TraceError(good + "\n" + R"({"arrival_s": 1, "output_tokens": 1})") ==
        "trace.jsonl:3: has no \"prompt_tokens\"; expected a whole number from 1 to 16777216");
  CHECK(TraceError(R"({"arrival_s": "now", "prompt_tokens": 1, "output_tokens": 1})") ==
        "trace.jsonl:1: \"arrival_s\" is \"now\"; expected a number from 0 to 1e+08");
  CHECK(TraceError(R"({"arrival_s": 1, "prompt_tokens": 1.5, "output_tokens": 1})") ==
        "trace.jsonl:1: \"prompt_tokens\" is 1.5; expected a whole number from 1 to 16777216");
  CHECK(TraceError(R"({"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "promt": 1})") ==
        "trace.jsonl:1: unknown field \"promt\"; known are arrival_s, prompt_tokens, "
        "output_tokens, prefix_group, prefix_tokens, n, priority, deadline_ms, workflow, tenant, "
        "adapter, adapter_pages, fork_at, forks, branch_tokens, join");
  CHECK(TraceError("[1, 2]\n") == "trace.jsonl:1: found array; expected one JSON object per line");
  CHECK(TraceError(good + "{\"arrival_s\": 1,\n").starts_with("trace.jsonl:2 is not valid JSON"));
  CHECK(TraceError(R"({"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 1, "prefix_group": 4})")
            .ends_with("expected both or neither"));
  CHECK(TraceError(R"({"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 1, "prefix_group": 4,)"
                   R"( "prefix_tokens": 10})") ==
        "trace.jsonl:1: \"prefix_tokens\" is 10; expected a whole number from 0 to 9");
  CHECK(TraceError(" \n\n") == "trace.jsonl: has no requests; expected one JSON object per line");
}

TEST_CASE("Lines too long, numbers too large and nesting too deep are refused", "[simulation]") {
  CHECK(TraceError(std::string(70000, ' ') + kGood)
            .starts_with("trace.jsonl:1: the line has 70059 bytes"));
  CHECK(TraceError(R"({"arrival_s": 1e300, "prompt_tokens": 1, "output_tokens": 1})")
            .find("expected a number from 0") != std::string::npos);
  CHECK(TraceError(R"({"arrival_s": 1, "prompt_tokens": 18446744073709551615, "output_tokens": 1})")
            .find("expected a whole number") != std::string::npos);
  CHECK(TraceError("{\"a\":" + std::string(1000, '[')).find("nested") != std::string::npos);
}

TEST_CASE("A trace names adapters with their pages, always the same", "[simulation]") {
  const std::string line = R"({"arrival_s": 1, "prompt_tokens": 4, "output_tokens": 1, )";
  const auto trace = ReadWorkloadTrace(line + R"("adapter": "a", "adapter_pages": 40})" + "\n" +
                                           line + R"("adapter": "b", "adapter_pages": 3})" + "\n" +
                                           line + R"("adapter": "a", "adapter_pages": 40})" + "\n" +
                                           line.substr(0, line.size() - 2) + "}",
                                       "trace.jsonl");
  REQUIRE(trace.ok());
  CHECK((*trace)[0].adapter == (*trace)[2].adapter);
  CHECK((*trace)[0].adapter != (*trace)[1].adapter);
  CHECK((*trace)[1].adapter_pages == 3);
  CHECK((*trace)[3].adapter == 0);
  CHECK(TraceError(line + R"("adapter": "a"})").find("expected both or neither") !=
        std::string::npos);
  CHECK(TraceError(line + R"("adapter": "a", "adapter_pages": 0})").find("adapter_pages") !=
        std::string::npos);
  CHECK(TraceError(line + R"("adapter": "a", "adapter_pages": 1})" + "\n" + line +
                   R"("adapter": "a", "adapter_pages": 2})")
            .find("trace.jsonl:2: has an adapter of 2 pages that had 1 before") !=
        std::string::npos);
}

TEST_CASE("A profile is what the benchmark prints, of one model on one machine", "[simulation]") {
  const std::string line =
      R"({"model":"tinyllama-1.1b","weights":"q4_0","device":"CPU","kv_type":"f16","batch":1,)"
      R"("prompt_tokens":64,"output_tokens":32,"prefill_tok_s":600.5,"decode_tok_s":60.25,)"
      R"("read_gb_s":37,"limit_read_gb_s":45,"gops":1400,"limit_gops":1880,"load_s":0.5})";
  const auto profile = ReadProfile(line + "\n" + line, "p.json");
  REQUIRE(profile.ok());
  CHECK(profile->weights == "q4_0");
  REQUIRE(profile->points.size() == 2);
  CHECK(profile->points[0].prefill_tok_s == 600.5);
  CHECK(profile->points[1].decode_tok_s == 60.25);

  std::string other = line;
  other.replace(other.find("q4_0"), 4, "q8_0");
  const auto mixed = ReadProfile(line + "\n" + other, "p.json");
  REQUIRE_FALSE(mixed.ok());
  CHECK(std::string(mixed.status().message())
            .starts_with("p.json:2: \"weights\" is \"q8_0\"; expected \"q4_0\""));
  CHECK(ReadProfile("", "p.json").status().message() ==
        "p.json: has no measurements; expected the lines that `heddle bench --json` prints");
  std::string zero = line;
  zero.replace(zero.find("60.25"), 5, "0.000");
  CHECK_FALSE(ReadProfile(zero, "p.json").ok());
}

}  // namespace
}  // namespace heddle::server
