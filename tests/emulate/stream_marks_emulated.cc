// Marks in streams of emulated devices, and streams beside those: each has a thread, as its work
// may wait for what the device does meanwhile.
#include "kernels/cuda/ranks/stream_marks.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/cuda/ranks/nccl_library.h"
#include "tests/emulate/stream_port.h"

namespace heddle::kernels::cuda {
namespace {

void Enqueue(void* stream, std::function<void()> work) {
  auto* port = static_cast<emulate::StreamPort*>(stream);
  port->enqueue(
      port,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> own(
            static_cast<std::function<void()>*>(argument));
        (*own)();
      },
      new std::function<void()>(std::move(work)));
}

class EmulatedMark final : public StreamMark {
 public:
  absl::Status Record(void* stream) override {
    passed_ = std::make_shared<std::atomic<bool>>(false);
    Enqueue(stream, [passed = passed_] { passed->store(true); });
    return absl::OkStatus();
  }
  absl::Status Await(void* stream) override {
    Enqueue(stream, [passed = passed_] {
      while (!passed->load()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    return absl::OkStatus();
  }
  bool IsPassed() const override { return passed_->load(); }

 private:
  std::shared_ptr<std::atomic<bool>> passed_ = std::make_shared<std::atomic<bool>>(true);
};

class EmulatedSideStream final : public SideStream {
 public:
  EmulatedSideStream() {
    port_.owner = this;
    port_.enqueue = [](emulate::StreamPort* port, void (*work)(void*), void* argument) {
      static_cast<Port*>(port)->owner->Add([=] { work(argument); });
    };
    thread_ = std::thread([this] { Work(); });
  }
  ~EmulatedSideStream() override {
    Add({});
    thread_.join();
  }
  void* stream() const override {
    return static_cast<emulate::StreamPort*>(const_cast<Port*>(&port_));
  }

 private:
  struct Port : emulate::StreamPort {
    EmulatedSideStream* owner = nullptr;
  };

  void Add(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_one();
  }
  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!next) return;
      next();
    }
  }

  Port port_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // GUARDED_BY(mutex_); an empty one is the end
  std::thread thread_;
};

}  // namespace

// Not NCCL's: that would look for a GPU.
const char* NcclFile() { return "libnccl_emulated.so.2"; }

absl::StatusOr<std::unique_ptr<StreamMark>> StreamMark::Create(const Runtime&) {
  return std::make_unique<EmulatedMark>();
}

absl::StatusOr<std::unique_ptr<SideStream>> SideStream::Create(const Runtime&) {
  return std::make_unique<EmulatedSideStream>();
}

}  // namespace heddle::kernels::cuda
