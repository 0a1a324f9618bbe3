#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/transport/direct/fabric.h"
#include "common/transport/direct/socket.h"
#include "common/transport/direct/wire_format.h"
#include "common/transport/frames.h"

namespace tandem::transport::testing {

// Speaks the protocol of a direct transport's socket and sends it what it likes.
class DirectStranger {
 public:
  // `address`: of the direct transport; its fabric's greeting is `fabric`'s.
  void send(const std::string& address, Fabric& fabric, const Frame& frame,
            MessageKind kind = MessageKind::kFrame) {
    if (connection_.fd() < 0) {
      connection_ = Connection::open(parse_direct_address(address)->socket).value();
      EXPECT_TRUE(fabric.start());
      const Hello hello{Generation{9999}, std::string(fabric.name()), fabric.hello(true).value()};
      say(MessageKind::kHello, encode_hello(hello));
    }
    std::string body(reinterpret_cast<const char*>(frame.header.data()), frame.header.size());
    body.append(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
    say(kind, body);
  }

 private:
  void say(MessageKind kind, const std::string& body) {
    EXPECT_TRUE(connection_.send(encode_message(kind, body)));
    EXPECT_TRUE(connection_.flush());
  }
  Connection connection_;
};

}  // namespace tandem::transport::testing
