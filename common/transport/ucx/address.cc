#include "common/transport/ucx/address.h"

#include <xxhash.h>

#include <cstdint>
#include <fstream>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

constexpr std::string_view kMagic = "TUCX\x03";
constexpr size_t kMaxPart = 4096;

void put_part(FieldWriter& fields, std::string_view part) {
  fields.put(static_cast<uint32_t>(part.size())).bytes(part);
}
std::string get_part(FieldReader& fields) {
  const auto length = fields.get<uint32_t>();
  return std::string(fields.bytes(length <= kMaxPart ? length : SIZE_MAX));
}

}  // namespace

std::string encode_ucx_address(const UcxAddress& address) {
  FieldWriter fields;
  fields.bytes(kMagic).put(address.host);
  put_part(fields, address.worker);
  put_part(fields, address.local);
  std::string out = fields.take();
  const uint64_t checksum = XXH3_64bits(out.data(), out.size());
  return out + FieldWriter().put(checksum).take();
}

Result<UcxAddress> parse_ucx_address(std::string_view bytes) {
  const auto refuse = [](const char* why) {
    return fail(ErrorCode::kInvalidArgument,
                "not the address of a ucx transport: " + std::string(why), "address");
  };
  if (bytes.size() < kMagic.size() + sizeof(uint64_t)) return refuse("too short");
  if (!bytes.starts_with(kMagic)) return refuse("wrong magic or version");
  const std::string_view covered = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  FieldReader checksum(bytes.substr(covered.size()));
  if (checksum.get<uint64_t>() != XXH3_64bits(covered.data(), covered.size())) {
    return refuse("its checksum does not hold");
  }
  FieldReader fields(covered.substr(kMagic.size()));
  UcxAddress address;
  address.host = fields.get<uint64_t>();
  address.worker = get_part(fields);
  address.local = get_part(fields);
  if (!fields.complete() || address.worker.empty()) return refuse("wrong length");
  return address;
}

uint64_t this_host() {
  std::string text;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, text);
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace tandem::transport
