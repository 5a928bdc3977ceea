// Traces of models of Adaptive Parallel Reasoning (APR): a search over nodes that calls further
// searches. A trace ends with a list of nodes to search from; each search begins with a prompt of
// its own, made of what the trace says of its node, and sees nothing else of the trace. What they
// have found takes the place of the list, and the model goes on behind that.
// Source: Pan et al., "Learning Adaptive Parallel Reasoning with Language Models", 2025, and its
// orchestrator.
// Thread-safety: pure functions. All text is the model's: anything may be in it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::server {

struct AprCall {
  std::string node;    // "#1,1,2"
  std::string prompt;  // of the search from it
};

// The calls with which `trace` ends, `limit` of them at most. None if it ends with no list of
// calls, or if a node is named that it has not, or says nothing of.
std::vector<AprCall> AprCalls(std::string_view trace, size_t limit);

// The solution that a search has found, from its trace; nullopt: none.
std::optional<std::string> AprResult(std::string_view trace);

// `trace` with the results of its calls in the place of the calls.
struct AprJoin {
  std::string trace;
  size_t kept = 0;  // bytes of the trace before the calls; what follows is new
};
// REQUIRES: one result for each call.
AprJoin JoinApr(std::string_view trace, std::span<const AprCall> calls,
                std::span<const std::optional<std::string>> results);

// The mark that ends a list of calls, and one at which the model means to begin a list, and writes
// what begins the results: it goes on as if it had written the other.
inline constexpr std::string_view kAprEndOfCalls = "<End Calling Sub Searches>";
inline constexpr std::string_view kAprResults = "<Sub Searches>";
inline constexpr std::string_view kAprBeginOfCalls = "<Calling Sub Searches>";

}  // namespace heddle::server
