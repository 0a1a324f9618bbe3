// KV transfers between two real processes, and what happens when one of them dies.

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "common/transport/ucx/ucx_transport.h"
#include "tests/unit/transport/two_process_test.h"

namespace tandem::transport::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Generation kSelf{1};

class TwoProcesses : public TwoProcessTest {
 protected:
  TwoProcesses() {
    self.transport = create_ucx_transport({.tls = GetParam(),
                                           .on_warning =
                                               [this](const std::string& w) {
                                                 std::lock_guard lock(mutex);
                                                 warnings.push_back(w);
                                               }},
                                          {kSelf, clock, self.events, {}})
                         .value();
  }
  // The transport warns into what goes before it.
  ~TwoProcesses() override { self.transport.reset(); }

  std::mutex mutex;
  std::vector<std::string> warnings;
};

TEST_P(TwoProcesses, PagesCrossInBothDirectionsAndTheLanesAreNamed) {
  PeerProcess peer(2, {TANDEM_TRANSPORT_PEER, "2", GetParam()});
  send_whole(TransferId{1}, peer);
  Pages into(kProcessLayout, 8, 0);
  open_receive(TransferId{2}, Generation{2}, into);
  peer.say(send_command(TransferId{2}, 8, "whole"));
  peer.expect("sent 2");
  until([&] { return self.events.events(TransferId{2}) > 0; });
  ASSERT_TRUE(self.events.received(TransferId{2}));
  EXPECT_TRUE(into == Pages(kProcessLayout, 8, 0, 2));
  const std::string lanes = std::string(GetParam()).starts_with("tcp") ? "tcp" : "shared memory";
  EXPECT_TRUE(self.transport->detail().ends_with(": " + lanes)) << self.transport->detail();
  peer.say("detail");
  EXPECT_TRUE(peer.expect("detail ").ends_with(": " + lanes));
  std::lock_guard lock(mutex);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
}

// failures.md 8, 10, 11: the receiver dies in the middle.
TEST_P(TwoProcesses, AKilledReceiverFailsItsTransfersLongBeforeTheirDeadlineAndNoOthers) {
  PeerProcess doomed(2, {TANDEM_TRANSPORT_PEER, "2", GetParam()});
  PeerProcess other(3, {TANDEM_TRANSPORT_PEER, "3", GetParam()});
  // Introduced again, as by a router that was restarted: it has been met, whatever comes later.
  self.transport->meet("doomed", doomed.address());
  send_whole(TransferId{1}, doomed);
  self.transport->meet("doomed", doomed.address());
  doomed.say("receive 2 1 8 20000");
  doomed.expect("open");
  Pages from(kProcessLayout, 8, 0, 2);
  ASSERT_TRUE(open_send(TransferId{2}, doomed, 8));
  ASSERT_TRUE(post_layer(*self.transport, TransferId{2}, from, 0));
  doomed.kill(SIGKILL);
  const Duration took = until([&] { return self.events.events(TransferId{2}) > 0; });
  ASSERT_TRUE(self.events.send_failed(TransferId{2}));
  EXPECT_EQ(self.events.send_failed(TransferId{2})->code, ErrorCode::kTransport);
  EXPECT_LT(to_seconds(took), 10.0) << "half of the deadline; milliseconds on an idle machine";
  EXPECT_FALSE(self.events.not_met("doomed"));
  send_whole(TransferId{3}, other);
  PeerProcess restarted(4, {TANDEM_TRANSPORT_PEER, "4", GetParam()});
  send_whole(TransferId{4}, restarted);
}

// failures.md 1, 10: the sender dies in the middle; the receiver lives on and its lease ends.
TEST_P(TwoProcesses, AKilledSenderCostsItsOwnTransferOnly) {
  Pages into(kProcessLayout, 8, 0);
  {
    PeerProcess doomed(2, {TANDEM_TRANSPORT_PEER, "2", GetParam()});
    open_receive(TransferId{1}, Generation{2}, into, milliseconds(1500));
    doomed.say(send_command(TransferId{1}, 8, "half"));
    doomed.expect("posted");
    until([&] { return self.transport->counters().frames_received > 0; });
  }
  until([&] { return self.events.events(TransferId{1}) > 0; });
  EXPECT_TRUE(self.events.receive_failed(TransferId{1}));
  PeerProcess other(3, {TANDEM_TRANSPORT_PEER, "3", GetParam()});
  Pages second(kProcessLayout, 8, 0);
  open_receive(TransferId{2}, Generation{3}, second);
  other.say(send_command(TransferId{2}, 8, "whole"));
  other.expect("sent 2");
  until([&] { return self.events.events(TransferId{2}) > 0; });
  EXPECT_TRUE(self.events.received(TransferId{2}));
}

// A process that is killed while it writes must not block what others send through the same place.
// The moment of the kill moves through the writing, which takes some milliseconds.
TEST_P(TwoProcesses, SendersKilledWhileTheyWriteNeverBlockTheReceiver) {
  constexpr int kKills = 60;
  constexpr uint32_t kPages = 160;
  uint64_t id = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    Pages into(kProcessLayout, kPages, 0);
    const TransferId doomed_id{++id};
    {
      const auto generation = static_cast<uint64_t>(kill) + 2;
      PeerProcess doomed(generation,
                         {TANDEM_TRANSPORT_PEER, std::to_string(generation), GetParam()});
      open_receive(doomed_id, doomed.generation(), into);
      const uint64_t before = self.transport->counters().frames_received;
      doomed.say(send_command(doomed_id, kPages, "whole"));
      until([&] { return self.transport->counters().frames_received > before; }, seconds(20));
      ASSERT_FALSE(HasFailure()) << "blocked after " << kill << " kills";
      std::this_thread::sleep_for(std::chrono::microseconds(kill * 50));
    }
    self.transport->close_receive(doomed_id);
    if (kill % 10 != 9) continue;
    PeerProcess other(1000, {TANDEM_TRANSPORT_PEER, "1000", GetParam()});
    Pages second(kProcessLayout, 8, 0);
    const TransferId other_id{++id};
    open_receive(other_id, other.generation(), second);
    other.say(send_command(other_id, 8, "whole"));
    until([&] { return self.events.events(other_id) > 0; }, seconds(30));
    ASSERT_TRUE(self.events.received(other_id)) << "after " << kill + 1 << " kills";
    EXPECT_TRUE(second == Pages(kProcessLayout, 8, 0, other_id.value));
  }
}

// failures.md 13: every wait is bounded, even on a process that exists but does nothing.
TEST_P(TwoProcesses, AFrozenReceiverEndsTheTransferByItsDeadline) {
  PeerProcess frozen(2, {TANDEM_TRANSPORT_PEER, "2", GetParam()});
  send_whole(TransferId{1}, frozen);
  frozen.say("receive 2 1 200 20000");
  frozen.expect("open");
  frozen.kill(SIGSTOP);
  Pages from(kProcessLayout, 200, 0, 2);
  ASSERT_TRUE(open_send(TransferId{2}, frozen, 200, milliseconds(700)));
  for (uint32_t layer = 0; layer < kProcessLayout.layers; ++layer) {
    ASSERT_TRUE(post_layer(*self.transport, TransferId{2}, from, layer));
  }
  ASSERT_TRUE(self.transport->post_commit(TransferId{2}, "commit"));
  const Duration took = until([&] { return self.events.events(TransferId{2}) > 0; });
  EXPECT_EQ(self.events.send_failed(TransferId{2})->code, ErrorCode::kDeadlineExceeded);
  EXPECT_LT(to_seconds(took), 15.0);
  frozen.kill(SIGCONT);
  send_whole(TransferId{3}, frozen);
}

// Ports that a process listens on, by way of its socket inodes.
std::set<uint16_t> listening_ports(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  if (DIR* dir = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(dir)) {
      char target[128];
      const ssize_t n = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof(target));
      const std::string text(target, n > 0 ? static_cast<size_t>(n) : 0);
      if (text.starts_with("socket:[")) inodes.insert(text.substr(8, text.size() - 9));
    }
    closedir(dir);
  }
  std::set<uint16_t> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::vector<std::string> w;
    for (std::string word; words >> word;) w.push_back(word);
    if (w.size() > 9 && w[3] == "0A" && inodes.contains(w[9])) {
      ports.insert(static_cast<uint16_t>(std::stoul(w[1].substr(9), nullptr, 16)));
    }
  }
  return ports;
}

TEST_P(TwoProcesses, GarbageOnUcxsOwnPortsDisturbsNothing) {
  PeerProcess peer(2, {TANDEM_TRANSPORT_PEER, "2", GetParam()});
  send_whole(TransferId{1}, peer);
  const std::set<uint16_t> ports = listening_ports(peer.pid());
  if (std::string(GetParam()).find("tcp") != std::string::npos) {
    EXPECT_FALSE(ports.empty());
  }
  std::vector<std::string> garbage = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                      std::string(100'000, '\0'), std::string(100'000, '\xff')};
  uint64_t state = 42;
  for (int i = 0; i < 20; ++i) {
    std::string bytes;
    for (int n = 0; n < 1 << i % 14; ++n) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      bytes += static_cast<char>(state >> 56);
    }
    garbage.push_back(bytes);
  }
  for (const uint16_t port : ports) {
    for (const std::string& bytes : garbage) {
      const Fd s(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(port);
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(s.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) continue;
      (void)!::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  EXPECT_TRUE(peer.alive());
  send_whole(TransferId{2}, peer);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TwoProcesses, ::testing::Values("shm,tcp,self", "tcp,self"),
                         [](const auto& param_info) {
                           return std::string(param_info.param).starts_with("tcp") ? "Tcp"
                                                                                   : "Default";
                         });

}  // namespace
}  // namespace tandem::transport::testing
