#include "tests/gpu/clocks.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"

namespace heddle::gpu {
namespace {

constexpr auto kBetweenSamples = std::chrono::milliseconds(20);

// nvmlReturn_t, nvmlClockType_t and nvmlTemperatureSensors_t as their numbers.
constexpr int kSuccess = 0, kSmClock = 1, kMemoryClock = 2, kGpuSensor = 0;
using Handle = void*;

class Nvml final : public ClockSource {
 public:
  // False if it lacks something.
  bool Open() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    int (*init)() = nullptr;
    int (*by_index)(unsigned, Handle*) = nullptr;
    return Find("nvmlInit_v2", &init) && Find("nvmlDeviceGetHandleByIndex_v2", &by_index) &&
           Find("nvmlShutdown", &shutdown_) && Find("nvmlDeviceGetClockInfo", &clock_) &&
           Find("nvmlDeviceGetPowerUsage", &power_) &&
           Find("nvmlDeviceGetTemperature", &temperature_) && init() == kSuccess &&
           by_index(0, &device_) == kSuccess;
  }
  ~Nvml() override {
    if (device_ != nullptr) shutdown_();
  }

  bool Read(double* sm_mhz, double* memory_mhz, double* watts, double* celsius) override {
    unsigned sm = 0, memory = 0, milliwatts = 0, degrees = 0;
    if (clock_(device_, kSmClock, &sm) != kSuccess ||
        clock_(device_, kMemoryClock, &memory) != kSuccess ||
        power_(device_, &milliwatts) != kSuccess ||
        temperature_(device_, kGpuSensor, &degrees) != kSuccess) {
      return false;
    }
    *sm_mhz = sm;
    *memory_mhz = memory;
    *watts = milliwatts / 1e3;
    *celsius = degrees;
    return true;
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }

  void* library_ = nullptr;  // never closed
  Handle device_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*clock_)(Handle, int, unsigned*) = nullptr;
  int (*power_)(Handle, unsigned*) = nullptr;
  int (*temperature_)(Handle, int, unsigned*) = nullptr;
};

}  // namespace

std::unique_ptr<ClockSource> ClockSource::Open() {
  auto nvml = std::make_unique<Nvml>();
  if (!nvml->Open()) return nullptr;
  return nvml;
}

std::string ClockSample::ToJson() const {
  if (count == 0) return "";
  return absl::StrFormat(
      ", \"sm_MHz\": %.0f, \"least_sm_MHz\": %.0f, \"memory_MHz\": %.0f, \"W\": %.0f, \"C\": %.0f",
      sm_mhz, least_sm_mhz, memory_mhz, watts, celsius);
}

struct Clocks::Shared {
  std::unique_ptr<ClockSource> source;
  std::atomic<bool> ends = false;
  std::mutex mutex;
  ClockSample sums;  // not means yet

  void Sample() {
    double sm = 0, memory = 0, watts = 0, celsius = 0;
    if (!source->Read(&sm, &memory, &watts, &celsius)) return;
    const std::lock_guard lock(mutex);
    sums.least_sm_mhz = sums.count == 0 ? sm : std::min(sums.least_sm_mhz, sm);
    ++sums.count;
    sums.sm_mhz += sm;
    sums.memory_mhz += memory;
    sums.watts += watts;
    sums.celsius += celsius;
  }
};

Clocks::Clocks(std::unique_ptr<ClockSource> source) {
  if (source == nullptr) return;
  shared_ = std::make_unique<Shared>();
  shared_->source = std::move(source);
  thread_ = std::thread([shared = shared_.get()] {
    while (!shared->ends) {
      shared->Sample();
      std::this_thread::sleep_for(kBetweenSamples);
    }
  });
}

Clocks::~Clocks() {
  if (shared_ == nullptr) return;
  shared_->ends = true;
  thread_.join();
}

ClockSample Clocks::Take() {
  if (shared_ == nullptr) return {};
  const std::lock_guard lock(shared_->mutex);
  ClockSample mean = std::exchange(shared_->sums, ClockSample());
  const auto count = static_cast<double>(std::max<int64_t>(mean.count, 1));
  mean.sm_mhz /= count;
  mean.memory_mhz /= count;
  mean.watts /= count;
  mean.celsius /= count;
  return mean;
}

}  // namespace heddle::gpu
