#include "server/metrics/server_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/metric_families.h"

namespace heddle::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// Bounds in seconds, a 1-2-5 series: from a cached prompt on a GPU to a long one on a laptop.
Buckets FirstTokenBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60};
}
// Bounds from a short message to the worst schema that is compiled.
Buckets PrepareBuckets() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
}
Buckets InterTokenBuckets() { return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2}; }
// Tokens, a 1-2-5 series up to the longest contexts.
Buckets LengthBuckets() {
  return {1,    2,    5,    10,    20,    50,    100,    200,    500,
          1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
}
Buckets RequestBuckets() { return {0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300}; }

// A client can send an invented method, which must not become a label.
std::string MethodLabel(std::string_view method) {
  constexpr std::array<std::string_view, 7> kKnown = {"GET", "POST",   "HEAD", "OPTIONS",
                                                      "PUT", "DELETE", "PATCH"};
  bool known = std::find(kKnown.begin(), kKnown.end(), method) != kKnown.end();
  return known ? std::string(method) : "other";
}

}  // namespace

struct ServerMetrics::Families {
  std::string model;
  std::string version;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  prometheus::Registry registry;
  Family<Counter>* requests = nullptr;
  Family<Counter>* generations = nullptr;
  Family<Counter>* refusals = nullptr;
  Family<Counter>* batch_lines = nullptr;
  Family<Counter>* batches = nullptr;
  Family<Histogram>* durations = nullptr;
  Histogram* prepare_wait = nullptr;
  Histogram* prepare_time = nullptr;
  Histogram* adapter_wait = nullptr;
  Family<Histogram>* adapter_loads = nullptr;
  Histogram* queue_time = nullptr;
  Histogram* first_token = nullptr;
  Histogram* inter_token = nullptr;
  Histogram* prompt_lengths = nullptr;
  Histogram* answer_lengths = nullptr;
  Family<Counter>* key_requests = nullptr;  // null: not counted by key
  Family<Counter>* key_tokens = nullptr;
  Counter* prompt_tokens = nullptr;
  Counter* cached_tokens = nullptr;
  Counter* generated_tokens = nullptr;
  Counter* parallel_branches = nullptr;
  Counter* parallel_tokens = nullptr;
  Counter* critical_path_tokens = nullptr;
  Counter* search_samples = nullptr;
  Counter* pruned_samples = nullptr;
  Counter* saved_tokens = nullptr;
  Counter* handshake_failures = nullptr;
  Counter* request_exceptions = nullptr;
  Counter* spans_exported = nullptr;
  Counter* spans_dropped = nullptr;
  Gauge* open_streams = nullptr;
  std::function<int64_t()> log_dropped;
  std::function<AdapterFigures()> adapters;
  AdapterNames adapter_names;

  Histogram& LoadsFrom(AdapterOrigin origin, const char* result) {
    const char* source = origin == AdapterOrigin::kDisk ? "disk" : "composed";
    return adapter_loads->Add({{"source", source}, {"result", result}}, FirstTokenBuckets());
  }
  // The adapters that requests wait for are on their way from the disk, or from there to the pool.
  NamedAdapters NamesOf(const AdapterStats& stats, const AdapterFigures& figures) const {
    NamedAdapters named{.max = stats.max, .changed_at = stats.changed_at};
    if (adapter_names == nullptr) return named;
    named.changed_at = std::max(named.changed_at, figures.wanted_changed_at);
    named.running = adapter_names(stats.lists.resident);
    named.waiting = figures.wanted;
    for (std::string& name : adapter_names(stats.lists.waiting)) {
      named.waiting.push_back(std::move(name));
    }
    return named;
  }

  Counter* AddCounter(const char* name, const char* help) {
    return &BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
  Histogram* AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return &BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  // All labels show from the beginning, so that a rate has something to begin at.
  void AddBatchFigures() {
    batch_lines = &BuildCounter()
                       .Name("heddle_batch_lines_total")
                       .Help("Lines of batches that got a result, or were delayed, by outcome.")
                       .Register(registry);
    for (const char* outcome : {"succeeded", "failed", "expired", "delayed"}) {
      batch_lines->Add({{"outcome", outcome}});
    }
    batches = &BuildCounter()
                   .Name("heddle_batches_ended_total")
                   .Help("Batches that ended, by status.")
                   .Register(registry);
    for (size_t i = 0; i < kNumBatchStatuses; ++i) {
      const auto status = static_cast<BatchStatus>(i);
      if (HasEnded(status)) batches->Add({{"status", std::string(BatchStatusName(status))}});
    }
  }

  // Tokens of requests, and the times until they come.
  void AddTokenFigures() {
    first_token =
        AddHistogram("heddle_time_to_first_token_seconds",
                     "From the complete request to its first token.", FirstTokenBuckets());
    inter_token = AddHistogram("heddle_inter_token_seconds", "Between two tokens of one sequence.",
                               InterTokenBuckets());
    prompt_lengths =
        AddHistogram("heddle_request_prompt_tokens",
                     "Tokens in the prompts of one finished request.", LengthBuckets());
    answer_lengths = AddHistogram("heddle_request_generated_tokens",
                                  "Tokens generated for one finished request.", LengthBuckets());
    prompt_tokens =
        AddCounter("heddle_prompt_tokens_total", "Tokens in the prompts of finished requests.");
    cached_tokens =
        AddCounter("heddle_cached_prompt_tokens_total",
                   "Tokens in the prompts of finished requests found in the prefix cache.");
    generated_tokens =
        AddCounter("heddle_generated_tokens_total", "Tokens generated by finished requests.");
    parallel_branches = AddCounter("heddle_parallel_branches_total",
                                   "Branches that models asked for within answers.");
    parallel_tokens = AddCounter("heddle_parallel_tokens_total",
                                 "Tokens of answers whose model may think in branches.");
    critical_path_tokens = AddCounter("heddle_parallel_critical_path_tokens_total",
                                      "Tokens of the longest ways through these answers.");
    search_samples =
        AddCounter("heddle_search_samples_total", "Samples that searches have begun to draw.");
    pruned_samples = AddCounter("heddle_search_pruned_samples_total",
                                "Samples that searches have cut before their end.");
    saved_tokens = AddCounter("heddle_search_saved_tokens_total",
                              "Tokens that searches have spared, by estimate.");
  }
};

ServerMetrics::ServerMetrics(std::string_view model, std::string_view version)
    : families_(std::make_unique<Families>()) {
  Families& all = *families_;
  all.model = std::string(model);
  all.version = std::string(version);
  all.requests = &BuildCounter()
                      .Name("heddle_http_requests_total")
                      .Help("Finished HTTP requests, by route, method and status.")
                      .Register(all.registry);
  all.generations = &BuildCounter()
                         .Name("heddle_generation_requests_total")
                         .Help("Finished generation requests, by route and outcome.")
                         .Register(all.registry);
  all.refusals = &BuildCounter()
                      .Name("heddle_refused_total")
                      .Help("What the transport refused to protect the server, by reason.")
                      .Register(all.registry);
  all.durations = &BuildHistogram()
                       .Name("heddle_generation_duration_seconds")
                       .Help("From the complete request to the last byte of its answer.")
                       .Register(all.registry);
  all.queue_time =
      all.AddHistogram("heddle_queue_time_seconds", "From the prepared request to its first step.",
                       FirstTokenBuckets());
  all.prepare_wait = all.AddHistogram(
      "heddle_prepare_wait_seconds",
      "Waits of requests for a thread that prepares them; small ones need none.", PrepareBuckets());
  all.prepare_time =
      all.AddHistogram("heddle_prepare_time_seconds",
                       "Reading requests: JSON, chat template, tokens, grammar.", PrepareBuckets());
  all.adapter_wait =
      all.AddHistogram("heddle_adapter_wait_seconds",
                       "Waits of prepared requests for their LoRA adapter.", FirstTokenBuckets());
  all.adapter_loads = &BuildHistogram()
                           .Name("heddle_adapter_load_seconds")
                           .Help(
                               "Bringing a LoRA adapter to the host's memory, by source and "
                               "result.")
                           .Register(all.registry);
  for (const char* result : {"ok", "failed"}) {
    for (const AdapterOrigin origin : {AdapterOrigin::kDisk, AdapterOrigin::kComposed}) {
      all.LoadsFrom(origin, result);
    }
  }
  all.AddTokenFigures();
  all.AddBatchFigures();
  all.request_exceptions = all.AddCounter(
      "heddle_request_exceptions_total",
      "Requests that an exception ended, which is a defect of the server or a lack of memory.");
  all.handshake_failures = all.AddCounter("heddle_tls_handshake_failures_total",
                                          "Connections that ended in their TLS handshake.");
  all.spans_exported =
      all.AddCounter("heddle_spans_exported_total", "Spans that the trace collector has taken.");
  all.spans_dropped = all.AddCounter(
      "heddle_spans_dropped_total", "Spans that the trace collector did not take, or not in time.");
  all.open_streams = &BuildGauge()
                          .Name("heddle_open_streams")
                          .Help("Streamed answers in progress.")
                          .Register(all.registry)
                          .Add({});
  BuildGauge()
      .Name("heddle_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(all.registry)
      .Add({{"version", std::string(version)}, {"model", std::string(model)}})
      .Set(1);
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::CountRequest(std::string_view route, std::string_view method, int status) {
  families_->requests
      ->Add({{"route", std::string(route)},
             {"method", MethodLabel(method)},
             {"status", std::to_string(status)}})
      .Increment();
}

void ServerMetrics::CountGeneration(std::string_view route, std::string_view outcome,
                                    double seconds) {
  families_->generations->Add({{"route", std::string(route)}, {"outcome", std::string(outcome)}})
      .Increment();
  families_->durations
      ->Add({{"route", std::string(route)}, {"outcome", std::string(outcome)}}, RequestBuckets())
      .Observe(seconds);
}

void ServerMetrics::CountTokens(int64_t prompt, int64_t cached, int64_t generated) {
  families_->prompt_lengths->Observe(static_cast<double>(prompt));
  families_->answer_lengths->Observe(static_cast<double>(generated));
  families_->prompt_tokens->Increment(static_cast<double>(prompt));
  families_->cached_tokens->Increment(static_cast<double>(cached));
  families_->generated_tokens->Increment(static_cast<double>(generated));
}

void ServerMetrics::CountBranches(int64_t branches, int64_t tokens, int64_t critical_path) {
  families_->parallel_branches->Increment(static_cast<double>(branches));
  families_->parallel_tokens->Increment(static_cast<double>(tokens));
  families_->critical_path_tokens->Increment(static_cast<double>(critical_path));
}

void ServerMetrics::CountSearch(int64_t samples, int64_t pruned, int64_t saved_tokens) {
  families_->search_samples->Increment(static_cast<double>(samples));
  families_->pruned_samples->Increment(static_cast<double>(pruned));
  families_->saved_tokens->Increment(static_cast<double>(saved_tokens));
}

void ServerMetrics::WatchKeys() {
  Families& all = *families_;
  all.key_requests = &BuildCounter()
                          .Name("heddle_key_requests_total")
                          .Help("Finished generation requests, by API key and outcome.")
                          .Register(all.registry);
  all.key_tokens = &BuildCounter()
                        .Name("heddle_key_tokens_total")
                        .Help("Tokens of finished generation requests, by API key and kind.")
                        .Register(all.registry);
}

void ServerMetrics::CountKey(std::string_view key, std::string_view outcome, int64_t prompt,
                             int64_t generated) {
  if (families_->key_requests == nullptr || key.empty()) return;
  const std::string name(key);
  families_->key_requests->Add({{"key", name}, {"outcome", std::string(outcome)}}).Increment();
  const auto count = [&](const char* kind, int64_t tokens) {
    families_->key_tokens->Add({{"key", name}, {"kind", kind}})
        .Increment(static_cast<double>(tokens));
  };
  count("prompt", prompt);
  count("generated", generated);
}

void ServerMetrics::ObservePreparation(double waited, double spent) {
  if (waited >= 0) families_->prepare_wait->Observe(waited);
  families_->prepare_time->Observe(spent);
}

void ServerMetrics::ObserveAdapterWait(double seconds) {
  families_->adapter_wait->Observe(seconds);
}

void ServerMetrics::ObserveAdapterLoad(AdapterOrigin origin, double seconds, bool succeeded) {
  families_->LoadsFrom(origin, succeeded ? "ok" : "failed").Observe(seconds);
}

void ServerMetrics::ObserveQueueTime(double seconds) { families_->queue_time->Observe(seconds); }

void ServerMetrics::ObserveFirstToken(double seconds) { families_->first_token->Observe(seconds); }

void ServerMetrics::ObserveInterToken(double seconds, int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) families_->inter_token->Observe(seconds);
}

void ServerMetrics::CountRequestException() { families_->request_exceptions->Increment(); }

void ServerMetrics::CountHandshakeFailure() { families_->handshake_failures->Increment(); }

void ServerMetrics::CountRefusal(std::string_view reason, int count) {
  families_->refusals->Add({{"reason", std::string(reason)}}).Increment(count);
}

void ServerMetrics::CountBatchLine(std::string_view outcome) {
  families_->batch_lines->Add({{"outcome", std::string(outcome)}}).Increment();
}

void ServerMetrics::CountBatch(BatchStatus last) {
  families_->batches->Add({{"status", std::string(BatchStatusName(last))}}).Increment();
}

void ServerMetrics::CountSpans(int64_t exported, int64_t dropped) {
  families_->spans_exported->Increment(static_cast<double>(exported));
  families_->spans_dropped->Increment(static_cast<double>(dropped));
}

void ServerMetrics::WatchLog(std::function<int64_t()> dropped) {
  families_->log_dropped = std::move(dropped);
}

void ServerMetrics::WatchAdapters(std::function<AdapterFigures()> figures, AdapterNames names) {
  families_->adapters = std::move(figures);
  families_->adapter_names = std::move(names);
}

void ServerMetrics::StreamBegan() { families_->open_streams->Increment(); }
void ServerMetrics::StreamEnded() { families_->open_streams->Decrement(); }

std::string ServerMetrics::Render(const EngineStats& engine, const ConnectionFigures& connections,
                                  Names names, const PreparationFigures& preparation,
                                  const BatchFigures& batches,
                                  const BranchFigures& branches) const {
  MetricFamilies all = families_->registry.Collect();
  all.push_back(SingleValue("heddle_open_connections", "Open TCP connections.",
                            prometheus::MetricType::Gauge, connections.open));
  all.push_back(
      SingleValue("heddle_unsent_bytes", "Bytes of answers that clients have not taken yet.",
                  prometheus::MetricType::Gauge, static_cast<double>(connections.unsent_bytes)));
  const auto add_gauge = [&all](const char* name, const char* help, int64_t value) {
    all.push_back(
        SingleValue(name, help, prometheus::MetricType::Gauge, static_cast<double>(value)));
  };
  add_gauge("heddle_prepare_waiting_requests", "Requests that wait to be read.",
            preparation.waiting);
  add_gauge("heddle_prepare_busy_threads", "Threads that read a request.",
            preparation.busy_threads);
  add_gauge("heddle_prepare_stuck_threads",
            "Threads that have read one request for far longer than any should take.",
            preparation.stuck_threads);
  add_gauge("heddle_grammars", "Compiled grammars in memory.", preparation.num_grammars);
  add_gauge("heddle_grammar_bytes", "Bytes that compiled grammars hold (--grammar-cache-bytes).",
            preparation.grammar_bytes);
  all.push_back(SingleValue(
      "heddle_log_messages_dropped_total",
      "Log messages that nobody sees: standard error was not read, or could not be written.",
      prometheus::MetricType::Counter,
      families_->log_dropped ? static_cast<double>(families_->log_dropped()) : 0));
  add_gauge("heddle_pending_body_bytes", "Announced bytes of large bodies that are being received.",
            connections.pending_body_bytes);
  add_gauge("heddle_waiting_bodies", "Large bodies that wait until others have been received.",
            connections.waiting_bodies);
  const AdapterFigures adapters = families_->adapters ? families_->adapters() : AdapterFigures();
  const NamedAdapters named = families_->NamesOf(engine.adapters, adapters);
  AppendAdapterMetrics(adapters, named, &all);
  AppendBatchMetrics(batches, &all);
  AppendBranchMetrics(branches, &all);
  AppendEngineMetrics(engine, &all);
  if (names == Names::kAlsoVllm) AppendVllmNames(engine, named, &all);
  AppendProcessMetrics(&all);
  return prometheus::TextSerializer().Serialize(all);
}

std::string ServerMetrics::RenderJson(const EngineStats& engine,
                                      const ConnectionFigures& connections) const {
  const Families& all = *families_;
  ServerFigures figures;
  figures.model = all.model;
  figures.version = all.version;
  figures.uptime_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - all.began).count();
  figures.connections = connections;
  figures.open_streams = static_cast<int64_t>(all.open_streams->Value());
  figures.histograms = {{"queue_time", all.queue_time->Collect()},
                        {"time_to_first_token", all.first_token->Collect()},
                        {"inter_token", all.inter_token->Collect()}};
  return FiguresJson(engine, figures);
}

}  // namespace heddle::server
