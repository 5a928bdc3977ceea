#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "server/metrics/families.h"

namespace heddle::server {
namespace {

using prometheus::MetricType;

// Fields of /proc/self/stat behind the command's name, from field 3 (proc(5)).
std::vector<std::string> StatFields() {
  std::ifstream in("/proc/self/stat");
  std::string line((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), std::istream_iterator<std::string>()};
}

constexpr size_t kVirtualBytes = 23 - 3;  // positions of fields 23 and 24
constexpr size_t kResidentPages = 24 - 3;

int64_t ResidentBytes(const std::vector<std::string>& stat) {
  if (stat.size() <= kResidentPages) return 0;
  return std::strtoll(stat[kResidentPages].c_str(), nullptr, 10) * sysconf(_SC_PAGESIZE);
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

}  // namespace

int64_t ResidentBytes() { return ResidentBytes(StatFields()); }

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
  std::vector<std::string> stat = StatFields();
  if (stat.size() > kResidentPages) {
    gauge("process_virtual_memory_bytes", "Virtual memory of this process.",
          std::strtod(stat[kVirtualBytes].c_str(), nullptr));
    gauge("process_resident_memory_bytes", "Resident memory of this process.",
          static_cast<double>(ResidentBytes(stat)));
  }
  gauge("process_open_fds", "Open file descriptors.", static_cast<double>(CountDescriptors()));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge("process_max_fds", "Most file descriptors that may be open.",
          static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace heddle::server
