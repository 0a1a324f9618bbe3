#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>

#include "common/engine/cuda/bench/bench_card.h"

namespace tandem::bench {
namespace {

// cuDNN's attention is reached through PyTorch: its own C interface wants the whole operation graph
// spelled out, and whoever has cuDNN on a GPU machine nearly always has it from there. Prints one
// line of TFLOP/s for each length; times graph replays, like the benches here.
constexpr const char* kScript = R"py(
import sys, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
torch.cuda.set_device(int(sys.argv[1]))
for n in map(int, sys.argv[2:]):
    q = torch.randn(1, 28, n, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 28, n, 128, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(1, 28, n, 128, device="cuda", dtype=torch.bfloat16)
    f = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for _ in range(3): f()
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(8): f()
    times = []
    for _ in range(15):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); b.synchronize()
        times.append(a.elapsed_time(b) / 8e3)
    print(4 * n * (n + 1) / 2 * 128 * 28 / sorted(times)[7] / 1e12)
)py";

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

Result<std::vector<double>> cudnn_attention(const std::string& python, int device,
                                            const std::vector<uint32_t>& lengths) {
  std::string command = quoted(python) + " -c " + quoted(kScript) + " " + std::to_string(device);
  for (const uint32_t n : lengths) command += " " + std::to_string(n);
  command += " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return fail(ErrorCode::kUnavailable, "could not start " + python);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t line = text.rfind('\n');
    return fail(ErrorCode::kUnavailable,
                python + ": " + (line == std::string::npos ? text : text.substr(line + 1)));
  }
  // Warnings may come first; the figures are the last lines.
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (lines.size() < lengths.size())
    return fail(ErrorCode::kUnavailable, python + " printed " + std::to_string(lines.size()) +
                                             " lines for " + std::to_string(lengths.size()));
  std::vector<double> out;
  for (size_t i = lines.size() - lengths.size(); i < lines.size(); ++i) {
    char* end = nullptr;
    const double value = std::strtod(lines[i].c_str(), &end);
    if (end == lines[i].c_str() || !(value > 0))
      return fail(ErrorCode::kUnavailable, python + " printed \"" + lines[i] + "\"");
    out.push_back(value);
  }
  return out;
}

}  // namespace tandem::bench
