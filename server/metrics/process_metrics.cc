#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "server/metrics/metric_families.h"

namespace heddle::server {
namespace {

using prometheus::MetricType;

// The fields of a /proc/.../stat behind the command's name, from field 3 (proc(5)).
std::vector<std::string> StatFields(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), std::istream_iterator<std::string>()};
}

constexpr const char* kOwnStat = "/proc/self/stat";
constexpr size_t kVirtualBytes = 23 - 3;  // positions of fields 23 and 24
constexpr size_t kResidentPages = 24 - 3;
constexpr size_t kStartTicks = 22 - 3;  // since the machine started

int64_t ResidentBytes(const std::vector<std::string>& stat) {
  if (stat.size() <= kResidentPages) return 0;
  return std::strtoll(stat[kResidentPages].c_str(), nullptr, 10) * sysconf(_SC_PAGESIZE);
}

// The Unix time at which the machine started; 0 if /proc does not tell.
double BootTime() {
  std::ifstream in("/proc/stat");
  for (std::string name; in >> name; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    double seconds = 0;
    if (name == "btime" && in >> seconds) return seconds;
  }
  return 0;
}

int64_t CountDescriptors() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

// CPU time by the threads' names; threads with the same name are added.
prometheus::MetricFamily ThreadTimes() {
  constexpr size_t kUserTicks = 14 - 3;  // positions of fields 14 and 15
  constexpr size_t kSystemTicks = 15 - 3;
  std::map<std::string, double> seconds;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    std::ifstream name_file(it->path() / "comm");
    std::string name;
    std::getline(name_file, name);
    const std::vector<std::string> stat = StatFields(it->path() / "stat");
    if (name.empty() || stat.size() <= kSystemTicks) continue;  // the thread has just ended
    const double ticks = std::strtod(stat[kUserTicks].c_str(), nullptr) +
                         std::strtod(stat[kSystemTicks].c_str(), nullptr);
    seconds[name] += ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  prometheus::MetricFamily family;
  family.name = "heddle_thread_cpu_seconds_total";
  family.help = "CPU time of the threads that live, by their name.";
  family.type = MetricType::Counter;
  for (const auto& [name, value] : seconds) {
    prometheus::ClientMetric metric;
    metric.label.push_back({"thread", name});
    metric.counter.value = value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

int64_t ResidentBytes() { return ResidentBytes(StatFields(kOwnStat)); }

void AppendProcessMetrics(MetricFamilies* families) {
  auto gauge = [families](const char* name, const char* help, double value) {
    families->push_back(SingleValue(name, help, MetricType::Gauge, value));
  };
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    families->push_back(
        SingleValue("process_cpu_seconds_total", "User and system CPU time of this process.",
                    MetricType::Counter, seconds(usage.ru_utime) + seconds(usage.ru_stime)));
  }
  std::vector<std::string> stat = StatFields(kOwnStat);
  if (stat.size() > kResidentPages) {
    gauge("process_virtual_memory_bytes", "Virtual memory of this process.",
          std::strtod(stat[kVirtualBytes].c_str(), nullptr));
    gauge("process_resident_memory_bytes", "Resident memory of this process.",
          static_cast<double>(ResidentBytes(stat)));
    gauge("process_start_time_seconds", "Unix time at which this process began.",
          BootTime() + std::strtod(stat[kStartTicks].c_str(), nullptr) /
                           static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
  families->push_back(ThreadTimes());
  gauge("process_open_fds", "Open file descriptors.", static_cast<double>(CountDescriptors()));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge("process_max_fds", "Most file descriptors that may be open.",
          static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace heddle::server
