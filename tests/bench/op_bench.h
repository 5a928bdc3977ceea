// Measures ops of the CPU backend by Google Benchmark, each with its rate and the share of this
// machine's limit, measured just before it. Environment variables: HEDDLE_BENCH_ISA (auto),
// HEDDLE_BENCH_THREADS (0: all cores; 1: times are the CPU time of the thread, which other programs
// on the machine disturb less).
// Thread-safety: none; for the one thread of a benchmark.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "benchmark/benchmark.h"
#include "kernels/cpu/limits.h"
#include "kernels/device.h"

namespace heddle::kernels {

using benchmark::State;
using cpu::LimitMeter;

inline CpuDeviceOptions Options() {
  CpuDeviceOptions options;
  if (const char* isa = std::getenv("HEDDLE_BENCH_ISA")) options.isa = isa;
  if (const char* threads = std::getenv("HEDDLE_BENCH_THREADS")) {
    options.num_threads = static_cast<int32_t>(std::strtol(threads, nullptr, 10));
  }
  return options;
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return std::move(value).value();
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

// The device and the meter share the cores, never at the same time.
struct Bench {
  std::unique_ptr<Device> device = OrDie(CreateCpuDevice(Options()));
  LimitMeter meter = OrDie(LimitMeter::Create(Options()));
};
inline Bench& TheBench() {
  static Bench bench;
  return bench;
}

inline double Now() {
  timespec now{};
  clock_gettime(Options().num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

enum class Peak { kF32, kBf16, kInt8 };

struct Work {
  double bytes = 0;
  double ops = 0;
  Peak peak = Peak::kF32;
};

inline double Measured(Peak peak, LimitMeter& meter) {
  if (peak == Peak::kF32) return meter.FmaGflopPerSecond();
  return peak == Peak::kBf16 ? meter.Bf16GflopPerSecond() : meter.Int8GopPerSecond();
}

// Runs `body` on the device until the framework has enough, each time behind prepare(), which is
// not timed, with shares of the limits as counters.
template <typename P, typename F>
void MeasureEach(State& state, const Work& work, const P& prepare, const F& body) {
  Bench& bench = TheBench();
  double read = bench.meter.ReadGbPerSecond();
  double peak = Measured(work.peak, bench.meter);
  double seconds = 0;
  for (auto _ : state) {
    prepare();
    double start = Now();
    static_cast<void>(bench.device->Run(body));
    double elapsed = Now() - start;
    state.SetIterationTime(elapsed);
    seconds += elapsed;
  }
  double rate = static_cast<double>(state.iterations()) / seconds / 1e9;
  state.counters["GB/s"] = work.bytes * rate;
  state.counters["%read"] = 100 * work.bytes * rate / read;
  state.counters["GOP/s"] = work.ops * rate;
  state.counters["%peak"] = 100 * work.ops * rate / peak;
  // The share of the limit that is reached first.
  state.counters["%limit"] = 100 * rate * std::max(work.bytes / read, work.ops / peak);
}

template <typename F>
void Measure(State& state, const Work& work, const F& body) {
  MeasureEach(
      state, work, [] {}, body);
}

}  // namespace heddle::kernels
