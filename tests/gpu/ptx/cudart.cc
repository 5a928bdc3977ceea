#include "tests/gpu/ptx/cudart.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/ptx/fatbin.h"

namespace heddle::ptx {
namespace {

constexpr int32_t kArchitecture = 90;

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") != 0;
}

absl::StatusOr<Module> ParseRegistered(const void* wrapper) {
  const auto container = ContainerOf(wrapper);
  if (!container.ok()) return container.status();
  const auto entries = ReadFatbin(*container);
  if (!entries.ok()) return entries.status();
  const auto text = FindPtx(*entries, kArchitecture);
  if (!text.ok()) return text.status();
  return ParseModule(*text);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

File Open(const std::string& path) {
  File file(std::fopen(path.c_str(), "w"), &std::fclose);
  if (file == nullptr) std::fprintf(stderr, "PTX machine: cannot write %s\n", path.c_str());
  return file;
}

std::string ToJson(const AccessCounts& counts) {
  return absl::StrCat(
      "\"global_requests\": ", counts.global_requests,
      ", \"global_sectors\": ", counts.global_sectors, ", \"global_bytes\": ", counts.global_bytes,
      ", \"shared_requests\": ", counts.shared_requests,
      ", \"shared_passes\": ", counts.shared_passes, ", \"shared_least\": ", counts.shared_least);
}

bool WaitsForOthers(const Kernel& kernel) {
  return std::any_of(kernel.code.begin(), kernel.code.end(), [](const Instruction& instruction) {
    return instruction.opcode == "griddepcontrol" && instruction.Has("wait");
  });
}

}  // namespace

Context& Context::Get() {
  static Context context;
  return context;
}

Context::Context()
    : counts_path_(Environment("HEDDLE_PTX_COUNTS")),
      accesses_path_(Environment("HEDDLE_PTX_ACCESSES")) {
  machine_.set_options(
      {.late = !IsSet("HEDDLE_PTX_EARLY"), .by_instruction = !accesses_path_.empty()});
  const std::string lost = Environment("HEDDLE_PTX_LOST");
  if (!lost.empty()) {
    refusal_ = {std::atoll(lost.c_str()), cudaErrorLaunchFailure, /*is_lost=*/true};
  }
}

Context::~Context() {
  WriteCounts();
  WriteAccesses();
}

void Context::WriteCounts() {
  if (counts_path_.empty()) return;
  const File file = Open(counts_path_);
  if (file == nullptr) return;
  for (const auto& [name, counts] : machine_.counts()) {
    const std::string line = absl::StrCat(
        "{\"kernel\": \"", Demangled(name), "\", \"instructions\": ", counts.instructions, ", ",
        ToJson(counts), ", \"bulk_bytes\": ", counts.bulk_bytes,
        ", \"async_bytes\": ", counts.async_bytes,
        ", \"matrix_multiplies\": ", counts.matrix_multiplies, "}\n");
    std::fputs(line.c_str(), file.get());
  }
}

void Context::WriteAccesses() {
  if (accesses_path_.empty()) return;
  const File file = Open(accesses_path_);
  if (file == nullptr) return;
  for (const auto& [function, kernel] : kernels_) {
    const auto counts = machine_.counts().find(kernel->name);
    if (kernel->kernel == nullptr || counts == machine_.counts().end()) continue;
    const std::vector<std::string>& sources = (*kernel->source->module)->sources;
    for (size_t i = 0; i < counts->second.accesses.size(); ++i) {
      const AccessCounts& access = counts->second.accesses[i];
      if (access.global_requests + access.shared_requests == 0) continue;
      const Instruction& at = kernel->kernel->code[i];
      const std::string line = absl::StrCat(
          "{\"kernel\": \"", Demangled(kernel->name), "\", \"line\": ", at.line,
          ", \"instruction\": \"", absl::StrReplaceAll(at.text, {{"\n", " "}, {"\t", " "}}),
          "\", \"source\": \"", at.source < 0 ? "" : sources[static_cast<size_t>(at.source)],
          "\", ", ToJson(access), "}\n");
      std::fputs(line.c_str(), file.get());
    }
  }
}

Registered* Context::Register(const void* wrapper) {
  Registered& source = registered_.emplace_back();
  source.wrapper = wrapper;
  return &source;
}

void Context::AddKernel(Registered* source, const void* host_function, const char* name) {
  auto kernel = std::make_unique<CUkern_st>();
  kernel->source = source;
  kernel->name = name;
  kernels_[host_function] = std::move(kernel);
}

CUkern_st* Context::FindKernel(const void* host_function) {
  const auto found = kernels_.find(host_function);
  return found == kernels_.end() ? nullptr : found->second.get();
}

cudaError_t Context::Load(CUkern_st& kernel) {
  if (!device.has_code) return cudaErrorNoKernelImageForDevice;
  if (kernel.kernel != nullptr) return cudaSuccess;
  std::optional<absl::StatusOr<Module>>& module = kernel.source->module;
  if (!module.has_value()) {
    module = ParseRegistered(kernel.source->wrapper);
    if (module->ok()) {
      for (const auto& [name, variable] : (*module)->variables) {
        machine_.AddRange(variable.data.get(), variable.bytes);
      }
    }
  }
  if (!module->ok()) {
    const bool is_missing = absl::IsNotFound(module->status());
    return Refuse(is_missing ? cudaErrorNoKernelImageForDevice : cudaErrorInvalidPtx,
                  absl::StrCat(Demangled(kernel.name), ": ", module->status().message()));
  }
  const auto found = (*module)->kernels.find(kernel.name);
  if (found == (*module)->kernels.end()) {
    return Refuse(cudaErrorInvalidDeviceFunction,
                  "the PTX has no kernel " + Demangled(kernel.name));
  }
  kernel.kernel = &found->second;
  kernel.waits = WaitsForOthers(found->second);
  return cudaSuccess;
}

void Context::Enqueue(CUstream_st& stream, std::function<void()> work) {
  StreamQueue& queue = *stream.queue;
  queue.items.push_back({.work = std::move(work)});
  ++queue.given;
  if (!machine_.options().late) RunUpTo(queue, queue.given);
}

void Context::EnqueueWait(CUstream_st& stream, const CUevent_st& event) {
  if (event.queue == nullptr) return;
  stream.queue->items.push_back({.after = event.queue, .place = event.place});
  ++stream.queue->given;
}

// An event that an item waits for was recorded before the item was given, so that no queue waits
// for what it has itself not come to.
void Context::RunUpTo(StreamQueue& queue, int64_t place) {
  while (queue.done < place && lost_ == cudaSuccess) {
    const StreamQueue::Item item = std::move(queue.items.front());
    queue.items.pop_front();
    if (item.after != nullptr) {
      RunUpTo(*item.after, item.place);
    } else {
      item.work();
    }
    ++queue.done;
  }
}

void Context::RunAll() {
  for (const auto& stream : streams) RunUpTo(*stream->queue, stream->queue->given);
}

void Context::Run(const PreparedLaunch& launch) {
  if (lost_ != cudaSuccess) return;
  const absl::Status status =
      machine_.Launch(*launch.kernel->kernel, launch.config, launch.params.data());
  if (status.ok()) return;
  const std::string& name = launch.kernel->name;
  lost_ = Refuse(cudaErrorLaunchFailure,
                 absl::StrReplaceAll(status.message(), {{name, Demangled(name)}}));
}

void Context::set_refusal(const Refusal& refusal) {
  const std::lock_guard lock(mutex_);
  refusal_ = refusal;
  has_refused_ = false;
}

cudaError_t Context::BeginCall() {
  if (lost_ != cudaSuccess) return lost_;
  if (refusal_.after < 0 || refusal_.after-- > 0) return cudaSuccess;
  has_refused_ = true;
  if (refusal_.is_lost) lost_ = refusal_.error;
  return refusal_.error;
}

void Context::Restart() {
  const std::lock_guard lock(mutex_);
  executables.clear();
  graphs.clear();
  events.clear();
  streams.clear();
  for (const auto& [data, allocation] : allocations_) machine_.Free(const_cast<uint8_t*>(data));
  allocations_.clear();
  device_bytes_ = 0;
  lost_ = cudaSuccess;
  refusal_ = {};
}

std::string Demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

cudaError_t& LastError() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t Refuse(cudaError_t error, const std::string& why) {
  std::fprintf(stderr, "PTX machine: %s\n", why.c_str());
  return error;
}

}  // namespace heddle::ptx
