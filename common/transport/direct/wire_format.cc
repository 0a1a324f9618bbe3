#include "common/transport/direct/wire_format.h"

#include <xxhash.h>

#include <cstring>

namespace tandem::transport {
namespace {

constexpr std::string_view kAddressMagic = "TDIR\x01";
constexpr uint32_t kMessageMagic = 0x314d4454;  // "TDM1"
constexpr uint32_t kHelloVersion = 2;
constexpr size_t kMaxName = 64;
constexpr size_t kMaxDetails = 16u << 10;

tl::unexpected<Error> corrupt(const char* what) {
  return fail(ErrorCode::kCorruptData, "direct transport: " + std::string(what));
}

}  // namespace

std::string encode_direct_address(const DirectAddress& address) {
  FieldWriter fields;
  fields.put(address.host).text(address.fabric).text(address.socket);
  std::string out = std::string(kAddressMagic) + fields.take();
  const uint64_t checksum = XXH3_64bits(out.data(), out.size());
  out.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return out;
}

Result<DirectAddress> parse_direct_address(std::string_view bytes) {
  const auto refuse = [](const char* why) {
    return fail(ErrorCode::kInvalidArgument,
                "not the address of a shm, cuda_ipc or nccl transport: " + std::string(why),
                "address");
  };
  if (bytes.size() < kAddressMagic.size() + sizeof(uint64_t)) return refuse("too short");
  if (!bytes.starts_with(kAddressMagic)) return refuse("wrong magic or version");
  const size_t covered = bytes.size() - sizeof(uint64_t);
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + covered, sizeof(checksum));
  if (checksum != XXH3_64bits(bytes.data(), covered)) return refuse("its checksum does not hold");
  FieldReader fields(bytes.substr(kAddressMagic.size(), covered - kAddressMagic.size()));
  DirectAddress address;
  address.host = fields.get<uint64_t>();
  address.fabric = fields.text();
  address.socket = fields.text();
  if (!fields.complete() || address.fabric.empty() || address.fabric.size() > kMaxName ||
      address.socket.empty() || address.socket.size() > kMaxName) {
    return refuse("wrong length");
  }
  return address;
}

std::string encode_message(MessageKind kind, std::string_view body) {
  FieldWriter fields;
  fields.put(kMessageMagic)
      .put(static_cast<uint32_t>(kind))
      .put(static_cast<uint32_t>(body.size()));
  std::string out = fields.take();
  out += body;
  return out;
}

Result<ParsedMessage> parse_message(std::string_view bytes) {
  if (bytes.size() < kMessageHeaderBytes) return ParsedMessage{};
  FieldReader fields(bytes);
  if (fields.get<uint32_t>() != kMessageMagic) return corrupt("a message has the wrong magic");
  const auto kind = fields.get<uint32_t>();
  if (kind < 1 || kind > 6) return corrupt("a message is of unknown kind");
  const auto length = fields.get<uint32_t>();
  if (length > kMaxMessageBody) return corrupt("a message is too long");
  if (fields.rest().size() < length) return ParsedMessage{};
  return ParsedMessage{.taken = kMessageHeaderBytes + length,
                       .message = {static_cast<MessageKind>(kind), fields.bytes(length)}};
}

std::string encode_hello(const Hello& hello) {
  FieldWriter fields;
  fields.put(kHelloVersion).put(hello.generation.value).text(hello.fabric).text(hello.details);
  return fields.take();
}

Result<Hello> parse_hello(std::string_view body) {
  FieldReader fields(body);
  const auto version = fields.get<uint32_t>();
  if (fields.good() && version != kHelloVersion) {
    return fail(ErrorCode::kMismatch, "the peer speaks version " + std::to_string(version) +
                                          " of the direct transports' protocol, this process " +
                                          std::to_string(kHelloVersion));
  }
  Hello hello;
  hello.generation = Generation{fields.get<uint64_t>()};
  hello.fabric = fields.text();
  hello.details = fields.text();
  if (!fields.complete() || hello.generation.value == 0 || hello.fabric.size() > kMaxName ||
      hello.details.size() > kMaxDetails) {
    return corrupt("a hello is malformed");
  }
  return hello;
}

std::string encode_offer(const Offer& offer) {
  FieldWriter fields;
  const std::string sums = encode_sums(offer.checksums);
  fields.reserve(2 * sizeof(uint16_t) + sums.size() + offer.note.size());
  fields.put(offer.pieces).put(static_cast<uint16_t>(offer.checksums.size()));
  return fields.bytes(sums).bytes(offer.note).take();
}

Result<Offer> parse_offer(std::span<const std::byte> payload) {
  FieldReader fields({reinterpret_cast<const char*>(payload.data()), payload.size()});
  Offer offer;
  offer.pieces = fields.get<uint16_t>();
  const auto count = fields.get<uint16_t>();
  if (!fields.good() || offer.pieces == 0) return corrupt("an offer names no pieces");
  if (count != offer.pieces && count != 0) return corrupt("an offer has checksums for a part");
  const std::string_view sums = fields.bytes(count * sizeof(uint64_t));
  if (!fields.good()) return corrupt("an offer is too short");
  offer.checksums = parse_sums(std::as_bytes(std::span(sums)));
  offer.note = fields.rest();
  return offer;
}

std::string encode_sums(std::span<const uint64_t> checksums) {
  return {reinterpret_cast<const char*>(checksums.data()), checksums.size_bytes()};
}

std::vector<uint64_t> parse_sums(std::span<const std::byte> payload) {
  std::vector<uint64_t> sums(payload.size() / sizeof(uint64_t));
  if (!sums.empty()) std::memcpy(sums.data(), payload.data(), sums.size() * sizeof(uint64_t));
  return sums;
}

std::string encode_go(const Go& go) { return FieldWriter().put(go.last).put(go.count).take(); }

Result<Go> parse_go(std::string_view body) {
  FieldReader fields(body);
  Go go;
  go.last = fields.get<uint64_t>();
  go.count = fields.get<uint32_t>();
  if (fields.complete() && go.count > 0) return go;
  return fail(ErrorCode::kCorruptData, "a go is malformed");
}

}  // namespace tandem::transport
