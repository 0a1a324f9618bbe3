#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/obs/log.h"
#include "common/proto/control.pb.h"

namespace tandem::router::test {

// What a scripted node says to a task: the answer's tokens from `index` on, and how it ends.
struct Script {
  std::vector<control::Token> tokens;
  control::FinishReason finish = control::FINISH_LENGTH;
};

struct FakeNodeOptions {
  control::Role role = control::ROLE_DECODE;
  std::string id = "decode-0";
  std::string shared_key;
  Duration token_time{};         // 0: the whole answer in one message
  size_t hold_after = SIZE_MAX;  // tokens of an answer after which nothing more comes
  uint32_t kv_blocks = 4096;
  uint32_t max_sequences = 4096;
  std::string model_fingerprint, tokenizer_hash;
  uint32_t vocab = 0;
  // Called on the node's thread. Default: `max_new_tokens` times token 5.
  std::function<Script(const control::Task&)> script;
};

// A node that speaks the real control protocol over TCP and makes its answers up: the router's
// tests and benchmarks. Owns its thread.
class FakeNode {
 public:
  FakeNode(uint16_t control_port, FakeNodeOptions options, const Clock& clock, Logger log);
  ~FakeNode();
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  [[nodiscard]] bool admitted() const;
  [[nodiscard]] std::string refusal() const;
  [[nodiscard]] uint64_t tasks() const;  // Generate and Prefill
  [[nodiscard]] uint64_t cancels() const;
  [[nodiscard]] uint64_t running() const;  // answers that are not finished
  [[nodiscard]] std::vector<control::Task> seen() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::router::test
