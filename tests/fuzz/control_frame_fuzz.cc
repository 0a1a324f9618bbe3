// Bytes on the control port. The first byte chooses: a raw stream cut into pieces of that many
// bytes, or (from 128 on) the payload of a good frame, so that the messages themselves are reached.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/net/control_auth.h"
#include "common/net/frame_codec.h"
#include "common/proto/control.pb.h"

namespace {

struct Outcome {
  std::vector<std::string> payloads;
  std::optional<tandem::FrameFault> fault;
  bool boundary = false;
  bool operator==(const Outcome&) const = default;
};

Outcome decode(std::string_view stream, size_t step) {
  constexpr uint32_t kLimit = 4096;
  tandem::FrameDecoder decoder(kLimit);
  Outcome outcome;
  while (!stream.empty() && !decoder.fault()) {
    decoder.feed(stream.substr(0, step));
    stream.remove_prefix(std::min(step, stream.size()));
    while (const auto frame = decoder.next()) {
      TANDEM_CHECK(frame->payload.size() <= kLimit, "no frame is over the limit");
      outcome.payloads.emplace_back(frame->payload);
    }
  }
  outcome.fault = decoder.fault();
  outcome.boundary = decoder.at_boundary() && !outcome.fault;
  return outcome;
}

void read_message(std::string_view payload) {
  tandem::control::ToRouter to_router;
  if (to_router.ParseFromArray(payload.data(), static_cast<int>(payload.size())) &&
      to_router.has_hello()) {
    (void)tandem::check_hello(to_router.hello(), std::string(tandem::kNonceBytes, 'n'), "key");
    (void)tandem::check_hello(to_router.hello(), std::string(tandem::kNonceBytes, 'n'), "");
  }
  tandem::control::ToNode to_node;
  (void)to_node.ParseFromArray(payload.data(), static_cast<int>(payload.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string stream(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] >= 128) {
    std::string framed;
    tandem::append_frame(framed, tandem::FrameKind::kMessage, 0, tandem::Generation(1), stream);
    stream = std::move(framed);
  }
  const Outcome whole = decode(stream, stream.size() + 1);
  const Outcome pieces = decode(stream, data[0] % 64 + 1u);
  TANDEM_CHECK(whole == pieces, "how bytes arrive makes no difference");
  for (const auto& payload : whole.payloads) read_message(payload);
  return 0;
}
