// Runs a fuzz target without libFuzzer: over every file of the folders that are named, whole and
// with changes that the seed below fixes, and over short inputs of random bytes.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr uint64_t kSeed = 20240607;
constexpr int kChangesPerFile = 200;
constexpr int kRandomInputs = 2000;
constexpr size_t kMaxBytes = 65536;
// Some targets take milliseconds an input.
constexpr auto kTimeOfChanges = std::chrono::seconds(3);

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> ReadFiles(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// One to four changes: a byte set, a piece doubled, a piece left out, the end cut off.
std::string Change(std::string input, std::mt19937_64* random) {
  const auto draw = [random](size_t below) { return (*random)() % std::max<size_t>(1, below); };
  for (size_t left = 1 + draw(4); left > 0 && !input.empty(); --left) {
    const size_t at = draw(input.size());
    const size_t length = 1 + draw(std::min<size_t>(64, input.size() - at));
    switch (draw(4)) {
      case 0:
        input[at] = static_cast<char>(draw(256));
        break;
      case 1:
        input.insert(at, input.substr(at, length));
        break;
      case 2:
        input.erase(at, length);
        break;
      default:
        input.resize(draw(2) == 0 ? at : input.size());
    }
  }
  input.resize(std::min(input.size(), kMaxBytes));
  return input;
}

std::string RandomBytes(std::mt19937_64* random) {
  std::string bytes((*random)() % 64, '\0');
  for (char& c : bytes) c = static_cast<char>((*random)());
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> files = ReadFiles(argc, argv);
  std::mt19937_64 random(kSeed);
  int64_t runs = 0;
  for (const std::string& file : files) Run(file);
  const auto until = std::chrono::steady_clock::now() + kTimeOfChanges;
  const auto in_time = [until] { return std::chrono::steady_clock::now() < until; };
  for (int i = 0; i < kRandomInputs && in_time(); ++i, ++runs) Run(RandomBytes(&random));
  for (int i = 0; i < kChangesPerFile; ++i) {
    for (const std::string& file : files) {
      if (!in_time()) break;
      Run(Change(file, &random));
      ++runs;
    }
  }
  std::printf("%zu files and %ld other inputs, seed %lu\n", files.size(), runs, kSeed);
  return 0;
}
