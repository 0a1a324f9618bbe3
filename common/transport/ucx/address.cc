#include "common/transport/ucx/address.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>

namespace tandem::transport {
namespace {

constexpr std::string_view kMagic = "TUCX\x02";
constexpr size_t kFixed = kMagic.size() + sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kMaxWorkerAddress = 4096;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T get(std::string_view bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

}  // namespace

std::string encode_ucx_address(const UcxAddress& address) {
  std::string out(kMagic);
  put(out, address.host);
  put(out, static_cast<uint32_t>(address.worker.size()));
  out += address.worker;
  put(out, XXH3_64bits(out.data(), out.size()));
  return out;
}

Result<UcxAddress> parse_ucx_address(std::string_view bytes) {
  const auto refuse = [](const char* why) {
    return fail(ErrorCode::kInvalidArgument,
                "not the address of a ucx transport: " + std::string(why), "address");
  };
  if (bytes.size() < kFixed + sizeof(uint64_t)) return refuse("too short");
  if (!bytes.starts_with(kMagic)) return refuse("wrong magic or version");
  const auto length = get<uint32_t>(bytes, kFixed - sizeof(uint32_t));
  if (length > kMaxWorkerAddress || bytes.size() != kFixed + length + sizeof(uint64_t)) {
    return refuse("wrong length");
  }
  const size_t covered = kFixed + length;
  if (get<uint64_t>(bytes, covered) != XXH3_64bits(bytes.data(), covered)) {
    return refuse("its checksum does not hold");
  }
  return UcxAddress{get<uint64_t>(bytes, kMagic.size()), std::string(bytes.substr(kFixed, length))};
}

uint64_t this_host() {
  std::string text;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, text);
  struct stat shm {};
  if (stat("/dev/shm", &shm) == 0) {
    text += ' ' + std::to_string(shm.st_dev) + ' ' + std::to_string(shm.st_ino);
  }
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace tandem::transport
