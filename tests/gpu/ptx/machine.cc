#include "tests/gpu/ptx/machine.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

// Instructions that a group runs before other warps have their turn.
constexpr int kSlice = 4096;

// Content of registers and shared memory before anything was stored: NaN as F32, F16 and BF16.
constexpr int kGarbage = 0xFF;

std::string Show(Dim3 d) { return absl::StrCat("(", d.x, ", ", d.y, ", ", d.z, ")"); }

int64_t Product(Dim3 d) { return int64_t{d.x} * d.y * d.z; }

absl::Status CheckLaunch(const Kernel& kernel, const LaunchConfig& config) {
  const int64_t threads = Product(config.block);
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(kernel.name, ": ", why));
  };
  if (threads < 1 || threads > kernel.max_threads) {
    return refuse(absl::StrCat(threads, " threads; its bound is ", kernel.max_threads));
  }
  if (Product(config.grid) < 1 || config.grid.x > INT32_MAX || config.grid.y > 65535 ||
      config.grid.z > 65535) {
    return refuse(absl::StrCat("a grid of ", Show(config.grid)));
  }
  const int64_t shared = int64_t{kernel.static_shared_bytes} + config.dynamic_shared_bytes;
  if (config.dynamic_shared_bytes < 0 || shared > kMaxSharedBytes) {
    return refuse(absl::StrCat(shared, " bytes of shared memory; there are ", kMaxSharedBytes));
  }
  return absl::OkStatus();
}

}  // namespace

AccessCounts& AccessCounts::operator+=(const AccessCounts& other) {
  global_requests += other.global_requests;
  global_sectors += other.global_sectors;
  global_bytes += other.global_bytes;
  shared_requests += other.shared_requests;
  shared_passes += other.shared_passes;
  shared_least += other.shared_least;
  return *this;
}

// Large pieces come from the system: pages that nobody touches cost nothing, and are zeros. A
// launch's registers, some MiB, do not, and the heap keeps its pages for the next one's.
Machine::Machine(MachineOptions options) : options_(options) {
  mallopt(M_MMAP_THRESHOLD, 16 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}
Machine::~Machine() = default;

void* Machine::Allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 512;
  // Not cleared: the runtime fills it as it wants it.
  auto memory = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes + kAlignment));
  const auto begin = reinterpret_cast<uint64_t>(memory.get());
  const uint64_t aligned = (begin + kAlignment - 1) / kAlignment * kAlignment;
  owned_[aligned] = std::move(memory);
  ranges_[aligned] = bytes;
  return reinterpret_cast<void*>(aligned);
}

bool Machine::Free(void* data) {
  if (owned_.erase(reinterpret_cast<uint64_t>(data)) == 0) return false;
  RemoveRange(data);
  return true;
}

void Machine::AddRange(const void* data, int64_t bytes) {
  ranges_[reinterpret_cast<uint64_t>(data)] = bytes;
}

void Machine::RemoveRange(const void* data) {
  ranges_.erase(reinterpret_cast<uint64_t>(data));
  last_range_ = {0, 0};
}

bool Machine::IsAllocated(uint64_t address, int64_t bytes) const {
  if (options_.any_address) return (address & kWindowMask) == 0;
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  if (address >= last_range_.first && end <= last_range_.second) return true;
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return false;
  --range;
  const uint64_t range_end = range->first + static_cast<uint64_t>(range->second);
  if (end > range_end || end < address) return false;
  last_range_ = {range->first, range_end};
  return true;
}

absl::Status Machine::Launch(const Kernel& kernel, const LaunchConfig& config, const void* params) {
  HEDDLE_RETURN_IF_ERROR(CheckLaunch(kernel, config));
  Counts& counts = counts_[kernel.name];
  if (options_.by_instruction) counts.accesses.resize(kernel.code.size());
  Block block(*this, kernel, config, params, counts);
  const Dim3 grid = config.grid;
  for (int64_t i = 0; i < Product(grid); ++i) {
    const int64_t n = options_.backward ? Product(grid) - 1 - i : i;
    HEDDLE_RETURN_IF_ERROR(block.Execute({static_cast<uint32_t>(n % grid.x),
                                          static_cast<uint32_t>(n / grid.x % grid.y),
                                          static_cast<uint32_t>(n / grid.x / grid.y)}));
  }
  return absl::OkStatus();
}

Block::Block(Machine& machine, const Kernel& kernel, const LaunchConfig& config, const void* params,
             Counts& counts)
    : machine_(machine),
      kernel_(kernel),
      config_(config),
      params_(static_cast<const uint8_t*>(params)),
      counts_(counts),
      num_threads_(static_cast<int32_t>(Product(config.block))) {
  const int num_warps = (num_threads_ + kWarpLanes - 1) / kWarpLanes;
  const size_t bytes_of_warp = static_cast<size_t>(kernel.num_rows) * kWarpLanes;
  rows_.assign(bytes_of_warp * static_cast<size_t>(num_warps) + kRowAlignment, kGarbage);
  uint8_t* rows = rows_.data();
  rows += kRowAlignment - reinterpret_cast<uint64_t>(rows) % kRowAlignment;
  shared_.resize(static_cast<size_t>(kernel.static_shared_bytes + config.dynamic_shared_bytes));
  for (int w = 0; w < num_warps; ++w) {
    warps_.push_back(
        std::make_unique<Warp>(*this, w, rows + static_cast<size_t>(w) * bytes_of_warp));
  }
}

Block::~Block() = default;

std::string Block::Places() const {
  std::string places;
  for (const auto& warp : warps_) {
    for (const Group& group : warp->groups()) {
      const Instruction& at = kernel_.code[static_cast<size_t>(group.place)];
      absl::StrAppend(&places, "\n  warp ", warp->index(), ", lanes ",
                      absl::Hex(group.lanes, absl::kZeroPad8), " at line ", at.line, ": ",
                      at.text.substr(0, 120));
    }
  }
  return places;
}

absl::Status Block::Execute(Dim3 index) {
  index_ = index;
  std::fill(shared_.begin(), shared_.end(), kGarbage);
  stored_by.assign((shared_.size() + 15) / 16, 0);
  barriers_ = {};
  bulk.reset();
  for (auto& warp : warps_) warp->Begin();
  for (bool alive = true; alive && !failed();) {
    alive = false;
    bool moved = false;
    for (auto& warp : warps_) {
      if (warp->alive() == 0 || failed()) continue;
      alive = true;
      moved = warp->RunSome() || moved;
    }
    if (alive && !moved && !failed() && !AdvanceBulkCopies(*this)) {
      failure_ = absl::StrCat(kernel_.name, ", block ", Show(index_),
                              ": nobody can go on; waiting are", Places());
    }
  }
  if (const std::string left = LeftBehind(*this); !failed() && !left.empty()) {
    failure_ = absl::StrCat(kernel_.name, ", block ", Show(index_), ": ", left);
  }
  return failed() ? absl::AbortedError(failure_) : absl::OkStatus();
}

Warp::Warp(Block& block, int index, uint8_t* rows) : block_(block), index_(index), rows_(rows) {
  const Kernel& kernel = block.kernel();
  predicates_.assign(static_cast<size_t>(kernel.num_predicates), 0);
  local_.assign(static_cast<size_t>(kernel.local_bytes) * kWarpLanes, kGarbage);
  for (const Kernel::Constant& constant : kernel.constants) {
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      std::memcpy(rows_ + static_cast<size_t>(constant.row) * kWarpLanes + lane * constant.bytes,
                  &constant.value, constant.bytes);
    }
  }
}

Warp::~Warp() = default;

void Warp::Begin() {
  const int left = block_.num_threads() - kWarpLanes * index_;
  alive_ = left >= kWarpLanes ? kAllLanes : (Lanes{1} << left) - 1;
  groups_.assign(1, {0, alive_});
  waits_for.fill(-1);
  copies.reset();
  products.reset();
}

bool Warp::RunSome() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!RunGroup(i)) continue;
    Merge();
    return true;
  }
  return false;
}

bool Warp::RunGroup(size_t which) {
  const Instruction* code = block_.kernel().code.data();
  int32_t place = groups_[which].place;
  const Lanes all = groups_[which].lanes;
  const bool is_alone = groups_.size() == 1;
  int64_t done = 0;
  for (; done < kSlice; ++done) {
    const Instruction& at = code[place];
    current_ = &at;
    Lanes lanes = all;
    if (at.guard >= 0) {
      const Lanes guard = predicates_[static_cast<size_t>(at.guard)];
      lanes &= at.guard_negated ? ~guard : guard;
    }
    if (at.run == RunBranch) {
      if (!Branch(at, which, lanes, &place) || !is_alone) break;
      continue;
    }
    groups_[which].place = place;
    if (lanes != 0) {
      const Outcome outcome = at.run(*this, at, lanes);
      if (outcome == Outcome::kAgain || block_.failed()) {
        counts().instructions += done;
        return done > 0;
      }
      if (outcome == Outcome::kMoved) {
        counts().instructions += done + 1;
        return true;
      }
    }
    ++place;
    if (!is_alone && std::any_of(groups_.begin(), groups_.end(),
                                 [place](const Group& g) { return g.place == place; })) {
      break;
    }
  }
  counts().instructions += done + 1;
  if (groups_[which].lanes == all) groups_[which].place = place;
  return true;
}

bool Warp::Branch(const Instruction& branch, size_t which, Lanes taken, int32_t* place) {
  const auto target = static_cast<int32_t>(branch.operands[0].value);
  const Lanes all = groups_[which].lanes;
  if (taken == 0 || taken == all) {
    *place = taken == 0 ? *place + 1 : target;
    return true;
  }
  groups_[which] = {*place + 1, all & ~taken};
  groups_.push_back({target, taken});
  return false;
}

// Groups at one place are one; the lowest place first.
void Warp::Merge() {
  if (groups_.size() < 2) return;
  std::sort(groups_.begin(), groups_.end(),
            [](const Group& a, const Group& b) { return a.place < b.place; });
  size_t kept = 0;
  for (size_t i = 1; i < groups_.size(); ++i) {
    if (groups_[i].place == groups_[kept].place) {
      groups_[kept].lanes |= groups_[i].lanes;
    } else {
      groups_[++kept] = groups_[i];
    }
  }
  groups_.resize(kept + 1);
}

void Warp::Exit(Lanes lanes) {
  alive_ &= ~lanes;
  if (const std::string left = LeftBehind(*this); alive_ == 0 && !left.empty()) Fail(left);
  for (Group& group : groups_) {
    if ((group.lanes & lanes) == 0) continue;
    group.lanes &= ~lanes;
    ++group.place;  // lanes that a guard kept
  }
  std::erase_if(groups_, [](const Group& g) { return g.lanes == 0; });
}

Counts& Warp::counts() { return block_.counts(); }

void Warp::CountAccess(const AccessCounts& access) {
  Counts& all = counts();
  all += access;
  if (all.accesses.empty()) return;
  all.accesses[static_cast<size_t>(current_ - block_.kernel().code.data())] += access;
}

Outcome Warp::Fail(std::string_view message, int lane) {
  if (block_.failed()) return Outcome::kAgain;
  block_.failure_ = absl::StrCat(block_.kernel().name, ", block ", Show(block_.index()), ", ");
  if (lane >= 0) {
    absl::StrAppend(&block_.failure_, "thread ", index_ * kWarpLanes + lane);
  } else {
    absl::StrAppend(&block_.failure_, "warp ", index_);
  }
  absl::StrAppend(&block_.failure_, ", line ", current_->line, ": ", std::string(message), "\n  ",
                  current_->text.substr(0, 300));
  return Outcome::kAgain;
}

uint8_t* Warp::Shared(uint64_t offset, int bytes, int lane) {
  auto& shared = block_.shared();
  if (offset < kSharedBase || offset + static_cast<uint64_t>(bytes) > kSharedBase + shared.size()) {
    Fail(absl::StrCat("shared memory at ", offset, ": the block has ", shared.size(),
                      " bytes from ", kSharedBase, " on"),
         lane);
    return nullptr;
  }
  if (offset % static_cast<uint64_t>(bytes) != 0) {
    Fail(absl::StrCat("shared memory at ", offset, " is not aligned to ", bytes), lane);
    return nullptr;
  }
  return shared.data() + (offset - kSharedBase);
}

uint8_t* Warp::Global(uint64_t address, int bytes, int lane) {
  if (!block_.machine().IsAllocated(address, bytes)) {
    Fail(absl::StrCat(bytes, " bytes at 0x", absl::Hex(address), " are not allocated"), lane);
    return nullptr;
  }
  if (address % static_cast<uint64_t>(bytes) != 0) {
    Fail(absl::StrCat("0x", absl::Hex(address), " is not aligned to ", bytes), lane);
    return nullptr;
  }
  return reinterpret_cast<uint8_t*>(address);
}

uint8_t* Warp::Local(uint64_t offset, int bytes, int lane) {
  const auto size = static_cast<uint64_t>(block_.kernel().local_bytes);
  if (offset + static_cast<uint64_t>(bytes) > size || offset % static_cast<uint64_t>(bytes) != 0) {
    Fail(absl::StrCat("local memory at ", offset, ": a thread has ", size, " bytes"), lane);
    return nullptr;
  }
  return local_.data() + static_cast<uint64_t>(lane) * size + offset;
}

const uint8_t* Warp::Param(uint64_t offset, int bytes, int lane) {
  const auto size = static_cast<uint64_t>(block_.kernel().param_bytes);
  if (offset + static_cast<uint64_t>(bytes) > size || offset % static_cast<uint64_t>(bytes) != 0) {
    Fail(absl::StrCat("parameters at ", offset, ": there are ", size, " bytes"), lane);
    return nullptr;
  }
  return block_.params_ + offset;
}

uint8_t* Warp::Generic(uint64_t address, int bytes, int lane) {
  switch (address & kWindowMask) {
    case kSharedWindow:
      return Shared(address & ~kWindowMask, bytes, lane);
    case kLocalWindow:
      return Local(address & ~kWindowMask, bytes, lane);
    case kParamWindow:
      return const_cast<uint8_t*>(Param(address & ~kWindowMask, bytes, lane));
    default:
      return Global(address, bytes, lane);
  }
}

namespace {

// Every lane's address is the one before it and `bytes`.
bool AreDense(const uint64_t* addresses, int bytes, Lanes lanes) {
  bool is_dense = lanes == kAllLanes;
  for (int lane = 1; lane < kWarpLanes; ++lane) {
    is_dense &= addresses[lane] - addresses[lane - 1] == static_cast<uint64_t>(bytes);
  }
  return is_dense;
}

}  // namespace

// Wavefronts that a device needs for so many bytes: 128 of each pass, 4 from each bank; lanes of
// wide accesses go in groups of 128 bytes.
void Warp::CountShared(const uint64_t* offsets, int bytes, Lanes lanes) {
  const int lanes_of_group = std::min(kWarpLanes, 128 / bytes);
  AccessCounts access = {.shared_requests = 1};
  if (bytes >= 4 && AreDense(offsets, bytes, lanes)) {
    access.shared_passes = access.shared_least = kWarpLanes / lanes_of_group;
    return CountAccess(access);
  }
  for (int first = 0; first < kWarpLanes; first += lanes_of_group) {
    std::array<uint64_t, 32> words;  // that are asked for, of all banks
    int n = 0;
    std::array<int, 32> of_bank = {};
    int passes = 0;
    for (int lane = first; lane < first + lanes_of_group; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      for (int b = 0; b < bytes; b += 4) {
        const uint64_t word = (offsets[lane] + static_cast<uint64_t>(b)) / 4;
        if (std::find(words.begin(), words.begin() + n, word) != words.begin() + n) continue;
        words[static_cast<size_t>(n++)] = word;
        passes = std::max(passes, ++of_bank[word % 32]);
      }
    }
    access.shared_passes += passes;
    access.shared_least += n > 0;
  }
  CountAccess(access);
}

void Warp::CountGlobal(const uint64_t* addresses, int bytes, Lanes lanes) {
  AccessCounts access = {.global_requests = 1,
                         .global_bytes = int64_t{bytes} * __builtin_popcount(lanes)};
  if (AreDense(addresses, bytes, lanes)) {
    const uint64_t end = addresses[kWarpLanes - 1] + static_cast<uint64_t>(bytes) - 1;
    access.global_sectors = static_cast<int64_t>(end / 32 - addresses[0] / 32 + 1);
    return CountAccess(access);
  }
  std::array<uint64_t, kWarpLanes> sectors;
  size_t n = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint64_t sector = addresses[lane] / 32;
    if (n == 0 || sectors[n - 1] != sector) sectors[n++] = sector;
  }
  const auto end = sectors.begin() + static_cast<std::ptrdiff_t>(n);
  std::sort(sectors.begin(), end);
  access.global_sectors = std::unique(sectors.begin(), end) - sectors.begin();
  CountAccess(access);
}

}  // namespace heddle::ptx
