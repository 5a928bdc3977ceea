#include "server/metrics/engine_figures.h"

#include <array>

namespace heddle::server {
namespace {

using Read = double (*)(const EngineStats&);

template <auto member>
double Value(const EngineStats& stats) {
  return static_cast<double>(stats.*member);
}

double UsedShare(const EngineStats& stats) {
  return stats.pages_total > 0 ? static_cast<double>(stats.pages_used) / stats.pages_total : 0;
}

template <auto member>
double AdapterValue(const EngineStats& stats) {
  return static_cast<double>(stats.adapters.*member);
}

template <auto member>
double DraftValue(const EngineStats& stats) {
  return static_cast<double>(stats.drafts.*member);
}

template <size_t place>
double AcceptedAt(const EngineStats& stats) {
  return static_cast<double>(stats.drafts.accepted_at[place]);
}

template <auto member>
double AheadValue(const EngineStats& stats) {
  return static_cast<double>(stats.ahead.*member);
}

template <engine::DrafterKind kind>
double DraftedBy(const EngineStats& stats) {
  return static_cast<double>(stats.drafters.drafted[static_cast<size_t>(kind)]);
}

template <engine::DrafterKind kind>
double AcceptedOf(const EngineStats& stats) {
  return static_cast<double>(stats.drafters.accepted[static_cast<size_t>(kind)]);
}

constexpr EngineFigure GaugeOf(std::string_view name, std::string_view metric,
                               std::string_view help, Read value) {
  return {.name = name, .metric = metric, .help = help, .kind = FigureKind::kGauge, .value = value};
}

constexpr EngineFigure CounterOf(std::string_view name, std::string_view metric,
                                 std::string_view help, Read value) {
  return {
      .name = name, .metric = metric, .help = help, .kind = FigureKind::kCounter, .value = value};
}

constexpr EngineFigure StepPart(std::string_view name, std::string_view part, Read value) {
  EngineFigure figure = CounterOf(name, "heddle_step_seconds_total",
                                  "Time spent in engine steps, by part of the step.", value);
  figure.label_name = "part";
  figure.label_value = part;
  return figure;
}

constexpr EngineFigure OfDrafter(EngineFigure figure, std::string_view drafter) {
  figure.label_name = "drafter";
  figure.label_value = drafter;
  return figure;
}

constexpr EngineFigure DrafterTokens(std::string_view name, std::string_view drafter, Read value) {
  return OfDrafter(CounterOf(name, "heddle_spec_decode_drafter_tokens_total",
                             "Guessed tokens that steps verified, by drafter.", value),
                   drafter);
}

constexpr EngineFigure DrafterAccepted(std::string_view name, std::string_view drafter,
                                       Read value) {
  return OfDrafter(CounterOf(name, "heddle_spec_decode_drafter_accepted_total",
                             "Guessed tokens that became tokens of answers, by drafter.", value),
                   drafter);
}

// Accepted tokens by their place in the draft, from 0 as vLLM counts.
template <size_t place>
constexpr EngineFigure AcceptedPlace(std::string_view name, std::string_view position) {
  EngineFigure figure =
      CounterOf(name, "heddle_spec_decode_accepted_tokens_per_position_total",
                "Accepted tokens by their place in the draft; the last place counts all behind it.",
                &AcceptedAt<place>);
  figure.label_name = "position";
  figure.label_value = position;
  return figure;
}

using engine::DrafterKind;
using DraftStats = scheduler::DraftBudgetStats;

constexpr auto kFigures = std::to_array<EngineFigure>({
    GaugeOf("running_sequences", "heddle_running_sequences", "Sequences in the batch.",
            &Value<&EngineStats::running_sequences>),
    GaugeOf("paused_sequences", "heddle_paused_sequences",
            "Sequences whose clients do not read what there is; they get no rows.",
            &Value<&EngineStats::paused_sequences>),
    GaugeOf("waiting_requests", "heddle_waiting_requests",
            "Requests that wait for their first step.", &Value<&EngineStats::waiting_requests>),
    GaugeOf("queue_limit", "heddle_queue_limit",
            "Requests that may wait before others are refused.", &Value<&EngineStats::queue_limit>),
    GaugeOf("waiting_tokens", "heddle_waiting_tokens", "Tokens in the prompts of waiting requests.",
            &Value<&EngineStats::waiting_tokens>),
    GaugeOf("queue_tokens_limit", "heddle_queue_tokens_limit",
            "Tokens in the prompts of waiting requests before others are refused; 0: no limit.",
            &Value<&EngineStats::queue_tokens_limit>),
    GaugeOf("orphaned_requests", "heddle_orphaned_requests",
            "Requests that run for nobody; must be 0.", &Value<&EngineStats::orphaned_requests>),
    CounterOf("steps", "heddle_steps_total", "Engine steps done.", &Value<&EngineStats::steps>),
    CounterOf("steps_ahead", "heddle_steps_ahead_total",
              "Steps that were planned and submitted while the one before ran.",
              &Value<&EngineStats::steps_ahead>),
    CounterOf("step_tokens", "heddle_step_tokens_total", "Token positions that the steps computed.",
              &Value<&EngineStats::step_tokens>),
    CounterOf("budget_tokens", "heddle_step_budget_tokens_total",
              "Token positions that the steps could have computed within their budgets.",
              &Value<&EngineStats::budget_tokens>),
    CounterOf(
        "prompt_tokens", "heddle_computed_prompt_tokens_total",
        "Prompt positions computed, those computed again after a preemption and forced tokens "
        "included.",
        &Value<&EngineStats::prompt_tokens>),
    CounterOf("cached_tokens", "heddle_prefix_cache_tokens_total",
              "Prompt positions taken from the prefix cache in place of computing them.",
              &Value<&EngineStats::cached_tokens>),
    CounterOf("generated_tokens", "heddle_sampled_tokens_total",
              "Tokens of answers, drawn or forced.", &Value<&EngineStats::generated_tokens>),
    CounterOf("forced_tokens", "heddle_forced_tokens_total",
              "Tokens of answers that a grammar left no choice about and nobody drew.",
              &Value<&EngineStats::forced_tokens>),
    CounterOf("drafts.made", "heddle_spec_decode_drafts_total",
              "Drafts that steps verified: one per sequence and step.",
              &DraftValue<&DraftStats::drafts>),
    CounterOf("drafts.tokens", "heddle_spec_decode_draft_tokens_total",
              "Guessed tokens that steps verified.", &DraftValue<&DraftStats::drafted_tokens>),
    CounterOf("drafts.accepted", "heddle_spec_decode_accepted_tokens_total",
              "Guessed tokens that became tokens of answers.",
              &DraftValue<&DraftStats::accepted_tokens>),
    AcceptedPlace<0>("drafts.accepted_at_0", "0"),
    AcceptedPlace<1>("drafts.accepted_at_1", "1"),
    AcceptedPlace<2>("drafts.accepted_at_2", "2"),
    AcceptedPlace<3>("drafts.accepted_at_3", "3"),
    AcceptedPlace<4>("drafts.accepted_at_4", "4"),
    AcceptedPlace<5>("drafts.accepted_at_5", "5"),
    AcceptedPlace<6>("drafts.accepted_at_6", "6"),
    AcceptedPlace<7>("drafts.accepted_at_7", "7"),
    AcceptedPlace<8>("drafts.accepted_at_8", "8"),
    AcceptedPlace<9>("drafts.accepted_at_9", "9"),
    AcceptedPlace<10>("drafts.accepted_at_10", "10"),
    AcceptedPlace<11>("drafts.accepted_at_11", "11"),
    AcceptedPlace<12>("drafts.accepted_at_12", "12"),
    AcceptedPlace<13>("drafts.accepted_at_13", "13"),
    AcceptedPlace<14>("drafts.accepted_at_14", "14"),
    AcceptedPlace<15>("drafts.accepted_at_15", "15"),
    GaugeOf("drafts.gained_seconds", "heddle_spec_decode_gained_seconds",
            "Time that drafts saved since the start, against what plain steps would have taken; "
            "negative: they cost more.",
            &DraftValue<&DraftStats::gained_seconds>),
    GaugeOf("drafts.paused", "heddle_spec_decode_paused",
            "1 while nothing is drafted because it did not pay; else 0.",
            &DraftValue<&DraftStats::is_off>),
    CounterOf("drafts.pauses", "heddle_spec_decode_pauses_total",
              "How often drafting paused because it did not pay.",
              &DraftValue<&DraftStats::times_off>),
    DrafterTokens("drafts.prediction_tokens", "prediction", &DraftedBy<DrafterKind::kPrediction>),
    DrafterTokens("drafts.suffix_tokens", "suffix", &DraftedBy<DrafterKind::kSuffix>),
    DrafterTokens("drafts.ngram_tokens", "ngram", &DraftedBy<DrafterKind::kNgram>),
    DrafterTokens("drafts.network_tokens", "network", &DraftedBy<DrafterKind::kNetwork>),
    DrafterAccepted("drafts.prediction_accepted", "prediction",
                    &AcceptedOf<DrafterKind::kPrediction>),
    DrafterAccepted("drafts.suffix_accepted", "suffix", &AcceptedOf<DrafterKind::kSuffix>),
    DrafterAccepted("drafts.ngram_accepted", "ngram", &AcceptedOf<DrafterKind::kNgram>),
    DrafterAccepted("drafts.network_accepted", "network", &AcceptedOf<DrafterKind::kNetwork>),
    CounterOf("drafts.network_passes", "heddle_spec_decode_network_passes_total",
              "Passes of the drafter beside the model.",
              &AheadValue<&scheduler::AheadStats::passes>),
    CounterOf("drafts.network_seconds", "heddle_spec_decode_network_seconds_total",
              "Time that these passes took.", &AheadValue<&scheduler::AheadStats::seconds>),
    GaugeOf("drafts.network_failed", "heddle_spec_decode_network_failed",
            "1 if the drafter beside the model has failed and turned itself off for good.",
            &AheadValue<&scheduler::AheadStats::has_failed>),
    GaugeOf("drafts.network_paused", "heddle_spec_decode_network_paused",
            "1 while the drafter beside the model rests because it did not pay; else 0.",
            &AheadValue<&scheduler::AheadStats::is_off>),
    CounterOf("recoveries", "heddle_recoveries_total",
              "Times that lost ranks came back, and everything was computed again.",
              &Value<&EngineStats::recoveries>),
    CounterOf("preemptions", "heddle_preemptions_total",
              "Sequences that gave up their pages to others.", &Value<&EngineStats::preemptions>),
    CounterOf("held_sequences", "heddle_held_sequences_total",
              "Running sequences that a step left out because their client was ahead of its share, "
              "summed over steps.",
              &Value<&EngineStats::held_sequences>),
    GaugeOf("live_clients", "heddle_live_clients",
            "Clients (API keys, or addresses without keys) that have requests in the engine.",
            &Value<&EngineStats::live_clients>),
    CounterOf("overdue_requests", "heddle_overdue_requests_total",
              "Requests that waited for the starvation limit and then went ahead of others.",
              &Value<&EngineStats::overdue_requests>),
    GaugeOf("kept_contexts", "heddle_kept_contexts",
            "Contexts of branches that others may go on from.",
            &Value<&EngineStats::kept_contexts>),
    GaugeOf("pages.total", "heddle_kv_pages", "Pages of the KV cache.",
            &Value<&EngineStats::pages_total>),
    GaugeOf("pages.used", "heddle_kv_pages_used", "Pages of the KV cache in use.",
            &Value<&EngineStats::pages_used>),
    GaugeOf("pages.cached", "heddle_kv_pages_cached",
            "Pages that nobody uses, with content that a later prompt may take over.",
            &Value<&EngineStats::pages_cached>),
    GaugeOf("pages.tokens_per_page", "heddle_kv_page_tokens", "Token positions per page.",
            &Value<&EngineStats::page_tokens>),
    GaugeOf("pages.used_share", "heddle_kv_usage_ratio",
            "Share of the KV cache in use, from 0 to 1.", &UsedShare),
    GaugeOf("pages.host_total", "heddle_kv_host_pages",
            "Pages of the tier in the host's memory or on its disk.",
            &Value<&EngineStats::host_pages_total>),
    GaugeOf("pages.host_used", "heddle_kv_host_pages_used", "Pages of that tier in use.",
            &Value<&EngineStats::host_pages_used>),
    CounterOf("pages.swapped_out", "heddle_pages_swapped_out_total",
              "Pages that went to the host's tier.", &Value<&EngineStats::pages_swapped_out>),
    CounterOf("pages.swapped_in", "heddle_pages_swapped_in_total",
              "Pages that came back from the host's tier.", &Value<&EngineStats::pages_swapped_in>),
    GaugeOf("adapters.loaded", "heddle_adapters_loaded",
            "LoRA adapters with all of their pages in the pool.",
            &AdapterValue<&AdapterStats::loaded>),
    GaugeOf("adapters.pages", "heddle_adapter_pages", "Pages of the pool that hold LoRA adapters.",
            &AdapterValue<&AdapterStats::pages>),
    GaugeOf("adapters.bytes", "heddle_adapter_bytes", "Bytes of those pages.",
            &AdapterValue<&AdapterStats::bytes>),
    GaugeOf("adapters.waiting_sequences", "heddle_adapter_waiting_sequences",
            "Sequences with a place that wait until their LoRA adapter is in the pool.",
            &AdapterValue<&AdapterStats::waiting_sequences>),
    CounterOf("adapters.uses", "heddle_adapter_uses_total",
              "Sequences with a LoRA adapter that got a place.",
              &AdapterValue<&AdapterStats::uses>),
    CounterOf("adapters.hits", "heddle_adapter_hits_total",
              "Those whose LoRA adapter was in the pool.", &AdapterValue<&AdapterStats::hits>),
    CounterOf("adapters.pages_loaded", "heddle_adapter_pages_loaded_total",
              "Pages of LoRA adapters that were copied from the host's memory to the pool.",
              &AdapterValue<&AdapterStats::pages_loaded>),
    CounterOf("adapters.pages_evicted", "heddle_adapter_pages_evicted_total",
              "Pages of LoRA adapters that left the pool for others.",
              &AdapterValue<&AdapterStats::pages_evicted>),
    CounterOf("adapters.wait_seconds", "heddle_adapter_pool_wait_seconds_total",
              "From a sequence's place to the step that has its LoRA adapter in the pool.",
              &AdapterValue<&AdapterStats::wait_seconds>),
    StepPart("step_seconds.plan", "plan", &Value<&EngineStats::plan_seconds>),
    StepPart("step_seconds.forward", "forward", &Value<&EngineStats::forward_seconds>),
    StepPart("step_seconds.sample", "sample", &Value<&EngineStats::sample_seconds>),
    StepPart("step_seconds.swap", "swap", &Value<&EngineStats::swap_seconds>),
    StepPart("step_seconds.emit", "emit", &Value<&EngineStats::emit_seconds>),
    CounterOf("step_seconds.between", "heddle_between_steps_seconds_total",
              "From the end of a step to the start of the next, while there was work: the time in "
              "which the engine computes nothing.",
              &Value<&EngineStats::between_seconds>),
    GaugeOf("step_seconds.running", "heddle_step_running_seconds",
            "Since the last step ended, while there is work; 0: idle.",
            &Value<&EngineStats::busy_since_seconds>),
    CounterOf("idle_seconds", "heddle_idle_seconds_total", "Time without any request.",
              &Value<&EngineStats::idle_seconds>),
});

}  // namespace

std::span<const EngineFigure> EngineFigures() { return kFigures; }

std::string_view StateName(EngineState state) {
  switch (state) {
    case EngineState::kServing:
      return "serving";
    case EngineState::kRecovering:
      return "recovering";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kFailed:
      break;
  }
  return "failed";
}

}  // namespace heddle::server
