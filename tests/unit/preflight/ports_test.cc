#include "common/preflight/ports.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/fd.h"

namespace tandem::preflight {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A port of the loopback interface that another process listens on, or that nobody else gets
// meanwhile.
class Squatter {
 public:
  explicit Squatter(bool listens = true) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    const int yes = 1;
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    EXPECT_EQ(::bind(fd_.get(), raw, sizeof address), 0);
    EXPECT_TRUE(!listens || ::listen(fd_.get(), 1) == 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(fd_.get(), raw, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  Fd fd_;
  uint16_t port_ = 0;
};

// Whose every port is any free one.
ClusterConfig anywhere() {
  ClusterConfig config;
  config.router.http.port = config.router.control.port = 0;
  return config;
}

TEST(BusyPorts, FreePortsAreNoFinding) { EXPECT_THAT(busy_ports(anywhere()), IsEmpty()); }

TEST(BusyPorts, EachNamesItsKeyItsPortAndItsVariable) {
  const Squatter http, control, metrics;
  ClusterConfig config = anywhere();
  config.router.http.port = http.port();
  config.router.control.port = control.port();
  config.decode.emplace_back();
  config.decode[1].metrics.port = metrics.port();
  const Findings found = busy_ports(config);
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].key, "router.http.port");
  EXPECT_EQ(found[0].value, std::to_string(http.port()));
  EXPECT_TRUE(found[0].refuses);
  EXPECT_THAT(found[0].reason, HasSubstr("another process does"));
  EXPECT_THAT(found[0].remedy, HasSubstr("TANDEM_ROUTER_HTTP_PORT"));
  EXPECT_THAT(to_string(found[0]), HasSubstr("router.http.port: " + found[0].value + ": cannot"));
  EXPECT_EQ(found[1].key, "router.control.port");
  EXPECT_EQ(found[2].key, "decode[1].metrics.port");
  EXPECT_THAT(found[2].remedy, HasSubstr("TANDEM_DECODE_1_METRICS_PORT"));
}

TEST(BusyPorts, ARouterElsewhereListensNowhereHere) {
  const Squatter taken;
  ClusterConfig config = anywhere();
  config.router.control.port = taken.port();  // the one that nodes dial
  config.router.enabled = false;
  EXPECT_THAT(busy_ports(config), IsEmpty());
}

TEST(BusyPorts, OnePortTwiceInAFileIsTheSecondOnesFault) {
  ClusterConfig config = anywhere();
  const Squatter reserved(/*listens=*/false);
  const uint16_t free = reserved.port();
  config.prefill[0].metrics.port = config.decode[0].metrics.port = free;
  Findings found = busy_ports(config);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].key, "decode[0].metrics.port");
  EXPECT_EQ(found[0].value, std::to_string(free));
  EXPECT_THAT(found[0].reason, HasSubstr("prefill[0].metrics.port is the same"));
  config.decode[0].metrics.host = "0.0.0.0";
  EXPECT_THAT(busy_ports(config), SizeIs(1));
  config.decode[0].metrics.host = "127.0.0.2";
  EXPECT_THAT(busy_ports(config), IsEmpty());
}

TEST(BusyPorts, AnAddressOfAnotherMachineIsTheHostsFault) {
  ClusterConfig config = anywhere();
  config.prefill[0].metrics.host = "192.0.2.1";  // RFC 5737: nobody's
  const Findings found = busy_ports(config);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].key, "prefill[0].metrics.host");
  EXPECT_EQ(found[0].value, "192.0.2.1");
}

}  // namespace
}  // namespace tandem::preflight
