#include "kernels/cpu/limits.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/host_memory.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int64_t kReadBytes = int64_t{256} << 20;  // eight times the largest L3 slice in use
constexpr int kRepeats = 4;                         // the best counts: others were disturbed
constexpr int64_t kPeakRounds = 1'000'000;

const PeakKernels& KernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kPeakAvx512;
  if (isa == Isa::kAvx512Bw) return kPeakAvx512Bw;
  if (isa == Isa::kAvx2Vnni) return kPeakAvx2Vnni;
  if (isa == Isa::kAvx2) return kPeakAvx2;
#endif
  static_cast<void>(isa);
  return kPeakPortable;
}

// nullptr if the level lacks the instruction.
const Bf16PeakKernels* Bf16KernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return &kPeakAmx;
  if (isa == Isa::kAvx512Bf16) return &kPeakAvx512Bf16;
#endif
  static_cast<void>(isa);
  return nullptr;
}

// Seconds of the clock that rates refer to: with one thread its CPU time, because other programs on
// the machine disturb it less.
double Now(const ThreadPool& pool) {
  timespec now{};
  clock_gettime(pool.num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Returns the rate in 1e9 units per second: the best of some runs of `body`, which does `work` in
// total, on all threads.
template <typename F>
double BestRate(ThreadPool& pool, double work, const F& body) {
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    double start = Now(pool);
    pool.OnEveryThread([&](int32_t thread) { body(thread); });
    best = std::max(best, work / (Now(pool) - start) / 1e9);
  }
  return best;
}

}  // namespace

struct LimitMeter::State {
  State(int32_t threads, bool pin, const PeakKernels& peak, const Bf16PeakKernels* bf16_peak)
      : pool(threads, pin),
        kernels(peak),
        bf16(bf16_peak),
        sinks(static_cast<size_t>(threads) * kSinkStride) {}

  // The compiler cannot drop results that are stored here; each thread has a cache line.
  static constexpr size_t kSinkStride = 64;
  float& Sink(int64_t thread) { return sinks[static_cast<size_t>(thread) * kSinkStride]; }

  ThreadPool pool;
  const PeakKernels& kernels;
  const Bf16PeakKernels* bf16;
  std::unique_ptr<Buffer> memory;
  std::vector<float> sinks;
};

LimitMeter::LimitMeter(std::unique_ptr<State> state) : state_(std::move(state)) {}
LimitMeter::LimitMeter(LimitMeter&&) noexcept = default;
LimitMeter::~LimitMeter() = default;

absl::StatusOr<LimitMeter> LimitMeter::Create(const CpuDeviceOptions& options) {
  HEDDLE_ASSIGN_OR_RETURN(Isa isa, ResolveIsa(options.isa, DetectCpuFeatures()));
  int32_t threads = options.num_threads > 0 ? options.num_threads : FindUsableCpus().num_cores;
  auto state =
      std::make_unique<State>(threads, options.pin_threads, KernelsFor(isa), Bf16KernelsFor(isa));
  HEDDLE_ASSIGN_OR_RETURN(state->memory, AllocateHost(kReadBytes, "bandwidth measurement"));
  std::memset(state->memory->data(), 1, static_cast<size_t>(kReadBytes));
  return LimitMeter(std::move(state));
}

double LimitMeter::ReadGbPerSecond() {
  State& s = *state_;
  int64_t part = kReadBytes / s.pool.num_threads() / 4096 * 4096;
  const auto* data = static_cast<const char*>(s.memory->data());
  return BestRate(s.pool, static_cast<double>(part * s.pool.num_threads()), [&](int64_t thread) {
    s.Sink(thread) = s.kernels.read(data + thread * part, part);
  });
}

double LimitMeter::FmaGflopPerSecond() {
  State& s = *state_;
  double work = static_cast<double>(kPeakRounds * s.kernels.fma_flops) * s.pool.num_threads();
  return BestRate(s.pool, work,
                  [&](int64_t thread) { s.Sink(thread) = s.kernels.fma(kPeakRounds); });
}

double LimitMeter::Int8GopPerSecond() {
  State& s = *state_;
  double work = static_cast<double>(kPeakRounds * s.kernels.int8_ops) * s.pool.num_threads();
  return BestRate(s.pool, work,
                  [&](int64_t thread) { s.Sink(thread) = s.kernels.int8(kPeakRounds); });
}

double LimitMeter::Bf16GflopPerSecond() {
  State& s = *state_;
  if (s.bf16 == nullptr) return FmaGflopPerSecond();
  double work = static_cast<double>(kPeakRounds * s.bf16->bf16_flops) * s.pool.num_threads();
  return BestRate(s.pool, work,
                  [&](int64_t thread) { s.Sink(thread) = s.bf16->bf16(kPeakRounds); });
}

MachineLimits LimitMeter::All() {
  return {ReadGbPerSecond(), FmaGflopPerSecond(), Bf16GflopPerSecond(), Int8GopPerSecond()};
}

}  // namespace heddle::kernels::cpu
