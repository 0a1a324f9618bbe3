// Runs a libFuzzer target without libFuzzer: replays the corpus, then mutates it with a fixed seed
// for a bounded time. The input in work is kept in a file mapping, so that it survives whatever the
// target does to the process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr size_t kMaxInput = size_t{1} << 20;

struct Options {
  double seconds = 3;
  uint64_t seed = 1;
  std::string artifact;
  std::vector<std::string> corpora;
};

// The input that runs now, in a shared mapping of the artifact file: length, then bytes.
class Artifact {
 public:
  explicit Artifact(const std::string& path) {
    if (path.empty()) return;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(kMaxInput + sizeof(uint64_t))) != 0) {
      std::fprintf(stderr, "cannot write %s; going on without it\n", path.c_str());
      if (fd >= 0) ::close(fd);
      return;
    }
    void* map =
        ::mmap(nullptr, kMaxInput + sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (map != MAP_FAILED) bytes_ = static_cast<uint8_t*>(map);
  }
  void record(const Bytes& input) {
    if (bytes_ == nullptr) return;
    const uint64_t size = input.size();
    std::memcpy(bytes_, &size, sizeof(size));
    if (size > 0) std::memcpy(bytes_ + sizeof(size), input.data(), input.size());
  }

 private:
  uint8_t* bytes_ = nullptr;
};

size_t below(Random& random, size_t bound) { return bound == 0 ? 0 : random() % bound; }

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (bytes.size() > kMaxInput) bytes.resize(kMaxInput);
  return bytes;
}

std::vector<Bytes> load_corpus(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> files;
  for (const std::string& folder : folders) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

// Numbers that lengths, counts and offsets like to break on.
uint64_t interesting(Random& random) {
  static constexpr std::array<uint64_t, 14> kValues{0,
                                                    1,
                                                    0x7f,
                                                    0x80,
                                                    0xff,
                                                    0x7fff,
                                                    0xffff,
                                                    0x7fffffff,
                                                    0x80000000,
                                                    0xffffffff,
                                                    0x100000000,
                                                    0x7fffffffffffffff,
                                                    0x8000000000000000,
                                                    0xffffffffffffffff};
  return kValues[below(random, kValues.size())];
}

void overwrite_number(Bytes& input, Random& random) {
  static constexpr std::array<size_t, 4> kWidths{1, 2, 4, 8};
  const size_t width = kWidths[below(random, kWidths.size())];
  if (input.size() < width) return;
  const size_t at = below(random, input.size() - width + 1);
  uint64_t value = interesting(random);
  if (below(random, 2) == 0) {  // near what stands there
    value = 0;
    std::memcpy(&value, input.data() + at, width);
    value += below(random, 33) - 16;
  }
  std::memcpy(input.data() + at, &value, width);
}

// Grammar-free tokens of the formats that are fuzzed here.
void insert_token(Bytes& input, Random& random) {
  static constexpr std::array<std::string_view, 20> kTokens{"\r\n",
                                                            "\r\n\r\n",
                                                            ": ",
                                                            "{",
                                                            "}",
                                                            "[",
                                                            "]",
                                                            "\"",
                                                            "\\u0000",
                                                            "\\ud83d",
                                                            "null",
                                                            "-1",
                                                            "1e999",
                                                            "0x",
                                                            "\xff\xfe",
                                                            "Content-Length: ",
                                                            "Transfer-Encoding: chunked\r\n",
                                                            "&a *a",
                                                            "!!binary ",
                                                            "\0\0\0\0"};
  const std::string_view token = kTokens[below(random, kTokens.size())];
  const auto at = input.begin() + static_cast<std::ptrdiff_t>(below(random, input.size() + 1));
  input.insert(at, token.begin(), token.end());
}

void mutate_once(Bytes& input, const std::vector<Bytes>& corpus, Random& random) {
  switch (below(random, 8)) {
    case 0:  // flip a bit
      if (!input.empty())
        input[below(random, input.size())] ^= static_cast<uint8_t>(1U << below(random, 8));
      return;
    case 1:  // set a byte
      if (!input.empty()) {
        input[below(random, input.size())] =
            below(random, 4) == 0 ? uint8_t{0xff} : static_cast<uint8_t>(random());
      }
      return;
    case 2:
      overwrite_number(input, random);
      return;
    case 3:
      insert_token(input, random);
      return;
    case 4:  // cut the end off
      input.resize(below(random, input.size() + 1));
      return;
    case 5: {  // take a piece out
      const size_t from = below(random, input.size() + 1);
      const size_t count = std::min(below(random, 64), input.size() - from);
      const auto at = input.begin() + static_cast<std::ptrdiff_t>(from);
      input.erase(at, at + static_cast<std::ptrdiff_t>(count));
      return;
    }
    case 6: {  // say a piece twice
      const size_t from = below(random, input.size() + 1);
      const size_t count = std::min(below(random, 256), input.size() - from);
      const Bytes piece(input.begin() + static_cast<std::ptrdiff_t>(from),
                        input.begin() + static_cast<std::ptrdiff_t>(from + count));
      const auto at = input.begin() + static_cast<std::ptrdiff_t>(below(random, input.size() + 1));
      input.insert(at, piece.begin(), piece.end());
      return;
    }
    default: {  // splice with another seed
      if (corpus.empty()) return;
      const Bytes& other = corpus[below(random, corpus.size())];
      input.resize(below(random, input.size() + 1));
      const size_t from = below(random, other.size() + 1);
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
  }
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--seconds" && has_value)
      options.seconds = std::atof(argv[++i]);
    else if (argument == "--seed" && has_value)
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    else if (argument == "--artifact" && has_value)
      options.artifact = argv[++i];
    else if (argument.starts_with("-"))
      return false;
    else
      options.corpora.emplace_back(argument);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--seconds S] [--seed N] [--artifact FILE] CORPUS...\n",
                 argv[0]);
    return 2;
  }
  Artifact artifact(options.artifact);
  const auto run = [&](const Bytes& input) {
    artifact.record(input);
    // A heap copy of the exact size, so that a sanitizer sees one byte too far.
    const Bytes exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  };

  std::vector<Bytes> corpus = load_corpus(options.corpora);
  for (const Bytes& input : corpus) run(input);
  run({});
  const size_t seeds = corpus.size();
  if (corpus.empty()) corpus.emplace_back();

  const tandem::SteadyClock clock;
  const tandem::TimePoint end = clock.now() + tandem::from_seconds(options.seconds);
  Random random(options.seed);
  uint64_t runs = 0;
  while (clock.now() < end) {
    Bytes input = corpus[below(random, corpus.size())];
    const size_t steps = 1 + below(random, 6);
    for (size_t i = 0; i < steps; ++i) mutate_once(input, corpus, random);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    run(input);
    ++runs;
  }
  std::printf("%zu seeds replayed, %llu mutations run, seed %llu\n", seeds,
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(options.seed));
  return 0;
}
