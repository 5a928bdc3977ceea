// Forks processes that are ranks of a mesh, for tests and benchmarks.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "server/ranks/rank_mesh.h"

namespace heddle::server::test {

inline constexpr uint64_t kKey = 0x1234'5678'9abc'def0;

// A word of bytes through a pipe.
inline void Put(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  if (write(fd, &bytes, sizeof(bytes)) != sizeof(bytes)) _exit(3);
  if (write(fd, text.data(), bytes) != static_cast<ssize_t>(bytes)) _exit(3);
}
inline std::string Get(int fd) {
  uint32_t bytes = 0;
  if (read(fd, &bytes, sizeof(bytes)) != sizeof(bytes) || bytes > 1 << 16) return "";
  std::string text(bytes, '\0');
  for (size_t at = 0; at < bytes;) {
    const ssize_t got = read(fd, text.data() + at, bytes - at);
    if (got <= 0) return "";
    at += static_cast<size_t>(got);
  }
  return text;
}

// Waits for a byte, at most so long.
inline bool Comes(int fd, int milliseconds) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, milliseconds) == 1;
}

// Runs body(mesh, rank) in `world` new processes; [world] whether it returned true there. UCX is
// never loaded here, since it does not survive a fork. `enter` runs before it is loaded there. A
// mesh is closed when all bodies have returned, or after a while: closing drops what another one
// may not have read yet.
inline std::vector<bool> OnProcesses(
    int32_t world, const RankMesh::Options& options,
    const std::function<bool(RankMesh&, int32_t rank)>& body,
    const std::function<void(int32_t rank)>& enter = [](int32_t) {}) {
  struct Child {
    std::array<int, 2> up, down;
    pid_t id = 0;
    int status = 0;
    bool has_ended = false;
  };
  std::vector<Child> children(static_cast<size_t>(world));
  for (int32_t rank = 0; rank < world; ++rank) {
    Child& own = children[static_cast<size_t>(rank)];
    if (pipe(own.up.data()) != 0 || pipe(own.down.data()) != 0) return {};
    std::fflush(nullptr);
    own.id = fork();
    if (own.id != 0) continue;
    enter(rank);
    auto mesh = RankMesh::Create(options);
    Put(own.up[1], mesh.ok() ? (*mesh)->address() : "");
    if (!mesh.ok()) {
      std::fprintf(stderr, "%s\n", std::string(mesh.status().message()).c_str());
      _exit(2);
    }
    std::vector<RankMesh::Peer> peers;
    for (int32_t r = 0; r < world; ++r) {
      peers.push_back({Get(own.down[0]), "rank " + std::to_string(r)});
    }
    const absl::Status connected = (*mesh)->Connect(peers, rank, kKey);
    if (!connected.ok()) {
      std::fprintf(stderr, "%s\n", std::string(connected.message()).c_str());
    }
    const bool ok = connected.ok() && body(**mesh, rank);
    Put(own.up[1], "returned");
    Comes(own.down[0], 2000);
    mesh->reset();
    std::fflush(nullptr);
    _exit(ok ? 0 : 1);
  }
  std::vector<std::string> addresses;
  for (const Child& child : children) addresses.push_back(Get(child.up[0]));
  for (const Child& child : children) {
    for (const std::string& address : addresses) Put(child.down[1], address);
  }
  for (Child& child : children) {
    while (!child.has_ended && !Comes(child.up[0], 20)) {
      child.has_ended = waitpid(child.id, &child.status, WNOHANG) == child.id;
    }
  }
  for (const Child& child : children) Put(child.down[1], "all have returned");
  std::vector<bool> results;
  for (Child& child : children) {
    if (!child.has_ended) child.has_ended = waitpid(child.id, &child.status, 0) == child.id;
    results.push_back(child.has_ended && child.status == 0);
    for (const int fd : child.up) close(fd);
    for (const int fd : child.down) close(fd);
  }
  return results;
}

inline std::vector<int32_t> AllRanks(int32_t world) {
  std::vector<int32_t> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace heddle::server::test
