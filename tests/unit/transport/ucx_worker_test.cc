// How UcxWorkers come and go: what must not take down a process while somebody connects.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/ucx/worker.h"
#include "tests/unit/transport/process.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace tandem::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A worker and what came to it.
struct Party {
  explicit Party(const char* tls) {
    UcxWorker::Callbacks callbacks;
    callbacks.on_message = [this](std::span<const std::byte> message) {
      received.emplace_back(message.begin(), message.end());
    };
    callbacks.on_endpoint_failed = [this](auto, const std::string&) { ++failed; };
    worker = UcxWorker::create({.tls = tls}, std::move(callbacks)).value();
  }
  void send(UcxWorker::EndpointId to, std::vector<std::byte> bytes) {
    worker->send(to, {bytes.size(),
                      [bytes](std::span<std::byte> out) {
                        std::memcpy(out.data(), bytes.data(), bytes.size());
                      },
                      {}});
  }
  std::vector<std::vector<std::byte>> received;
  int failed = 0;
  std::unique_ptr<UcxWorker> worker;
};

std::vector<std::byte> some_bytes(size_t count, size_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed) >> 3);
  return bytes;
}

class UcxWorkers : public ::testing::TestWithParam<const char*> {
 protected:
  template <typename Condition>
  bool until(std::initializer_list<Party*> parties, const Condition& done) {
    const TimePoint give_up = clock.now() + seconds(20);
    while (!done() && clock.now() < give_up) {
      for (Party* party : parties) party->worker->progress();
    }
    return done();
  }
  SteadyClock clock;
};

TEST_P(UcxWorkers, MessagesOfEverySizeArriveWholeAndInOrder) {
  Party a(GetParam());
  Party b(GetParam());
  const auto to = a.worker->connect(b.worker->address()).value();
  std::vector<std::vector<std::byte>> sent;
  for (const size_t size :
       {size_t{1}, size_t{72}, size_t{8192}, size_t{65536}, UcxWorker::kWholeMessage - 4,
        UcxWorker::kWholeMessage + 5000, size_t{300'000}, size_t{5'000'000}}) {
    for (size_t n = 0; n < 5; ++n) sent.push_back(some_bytes(size, n));
  }
  for (const auto& bytes : sent) a.send(to, bytes);
  ASSERT_TRUE(until({&a, &b}, [&] { return b.received.size() == sent.size(); }));
  EXPECT_TRUE(b.received == sent);
  EXPECT_TRUE(until({&a, &b}, [&] { return a.worker->in_flight() == 0; }));
}

// More than the places that wait for a message, sent while nobody reads.
TEST_P(UcxWorkers, WhatComesWhileNobodyReadsIsKeptInOrder) {
  Party a(GetParam());
  Party b(GetParam());
  const auto to = a.worker->connect(b.worker->address()).value();
  std::vector<std::vector<std::byte>> sent;
  for (size_t n = 0; n < 200; ++n) sent.push_back(some_bytes(100 + n, n));
  for (const auto& bytes : sent) a.send(to, bytes);
  for (int i = 0; i < 200; ++i) a.worker->progress();
  ASSERT_TRUE(until({&a, &b}, [&] { return b.received.size() == sent.size(); }));
  EXPECT_TRUE(b.received == sent);
}

TEST_P(UcxWorkers, AWorkerMayEndWhileAPeerConnects) {
  for (int round = 0; round < 100; ++round) {
    Party a(GetParam());
    std::optional<Party> b(GetParam());
    const auto to = a.worker->connect(b->worker->address()).value();
    a.send(to, some_bytes(1000, 1));
    // Both in step, or the receiver alone from some point on: what it has sent stays unread.
    for (int i = 0; i < round % 30; ++i) {
      a.worker->progress();
      b->worker->progress();
    }
    for (int i = 0; i < 20; ++i) b->worker->progress();
    if (round % 3 != 0 && !b->received.empty()) {  // and back
      const auto back = b->worker->connect(a.worker->address()).value();
      b->send(back, some_bytes(500, 2));
      if (round % 3 == 2) b->worker->progress();
    }
    const TimePoint start = clock.now();
    b.reset();
    EXPECT_LT(to_seconds(clock.now() - start), 5.0);
    for (int i = 0; i < 20; ++i) a.worker->progress();
  }
}

// A process that connects and is stopped or killed at any moment of it costs nobody else anything.
TEST_P(UcxWorkers, APeerMayDieOrFreezeWhileItConnects) {
  Party b(GetParam());
  const std::string address = b.worker->address();
  for (int round = 0; round < 40; ++round) {
    pid_t child = 0;
    std::string words[] = {TANDEM_TRANSPORT_PEER, "connect", GetParam(), to_hex(address),
                           std::to_string(round)};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(),
                    words[3].data(), words[4].data(), nullptr};
    ASSERT_EQ(posix_spawn(&child, argv[0], nullptr, nullptr, argv, environ), 0);
    int status = 0;
    while (waitpid(child, &status, WUNTRACED | WNOHANG) == 0) b.worker->progress();
    ASSERT_TRUE(WIFSTOPPED(status));
    for (int i = 0; i < 50; ++i) b.worker->progress();
    if (round % 8 == 7) {  // ours may end while it is frozen, at once
      const TimePoint start = clock.now();
      { Party other(GetParam()); }
      EXPECT_LT(to_seconds(clock.now() - start), 2.0);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    for (int i = 0; i < 200; ++i) b.worker->progress();
  }
  b.received.clear();
  Party c(GetParam());
  const auto to = c.worker->connect(address).value();
  c.send(to, some_bytes(77, 3));
  EXPECT_TRUE(until({&b, &c}, [&] { return !b.received.empty(); }));
}

INSTANTIATE_TEST_SUITE_P(Lanes, UcxWorkers, ::testing::Values("tcp,self"),
                         [](const auto&) { return "Tcp"; });

}  // namespace
}  // namespace tandem::transport
