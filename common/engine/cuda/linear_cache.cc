#include "common/engine/cuda/linear_cache.h"

#include <bit>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "common/base/run_file.h"

namespace tandem::engine {
namespace {

constexpr const char* kMagic = "tandem cublaslt algorithms 1";
constexpr size_t kMaxBytes = 4 << 20;

// FNV-1a.
uint64_t checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

tl::unexpected<Error> corrupt(const std::string& path, const std::string& what) {
  return fail(ErrorCode::kCorruptData, path + ": " + what + "; it is ignored and written anew");
}

std::string header(const WideCache::Identity& identity) {
  return std::string(kMagic) + "\ngpu " + identity.gpu + "\ncublaslt " +
         std::to_string(identity.version) + "\nworkspace " + std::to_string(identity.workspace) +
         "\n";
}

}  // namespace

std::string wide_cache_path(const std::string& folder, std::string_view gpu,
                            std::string_view driver, size_t version) {
  if (folder.empty()) return {};
  std::string card;
  for (const char c : gpu) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    const char spelled = capital ? static_cast<char>(c - 'A' + 'a') : plain ? c : '-';
    if (spelled != '-' || !card.ends_with('-')) card += spelled;
  }
  return folder + "/cublaslt-" + card + "-" + std::string(driver) + "-" + std::to_string(version) +
         ".txt";
}

uint32_t wide_bucket(uint32_t rows) {
  if (rows <= 32) return 32;
  const uint32_t below = std::bit_floor(rows - 1);  // below < rows <= 2 * below
  const uint32_t half = below + below / 2;
  return rows <= half ? half : 2 * below;
}

std::string WideCache::serialize() const {
  std::ostringstream out;
  out << header(identity_);
  for (const auto& [key, algorithm] : entries_) {
    out << key.kind << ' ' << key.in << ' ' << key.out << ' ' << key.rows << std::hex;
    for (const uint64_t word : algorithm) out << ' ' << word;
    out << std::dec << '\n';
  }
  std::string text = out.str();
  std::ostringstream end;
  end << "checksum " << std::hex << checksum(text) << '\n';
  return text + end.str();
}

Status WideCache::load(const std::string& path) {
  entries_.clear();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return fail(ErrorCode::kIo, path + ": " + error.message());
  if (bytes > kMaxBytes) return corrupt(path, "larger than such a file can be");
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file && !file.eof()) return fail(ErrorCode::kIo, path + ": cannot read");

  const size_t end = text.rfind("checksum ");
  if (!text.starts_with(kMagic) || end == std::string::npos)
    return corrupt(path, "not a file of cuBLASLt algorithms, or cut short");
  std::ostringstream want;
  want << "checksum " << std::hex << checksum(std::string_view(text).substr(0, end)) << '\n';
  if (std::string_view(text).substr(end) != want.str()) return corrupt(path, "wrong checksum");
  const std::string ours = header(identity_);
  if (!text.starts_with(ours))
    return fail(ErrorCode::kMismatch,
                path + " was made for another card or cuBLASLt; it is ignored and written anew");

  std::istringstream lines(text.substr(ours.size(), end - ours.size()));
  std::string line;
  std::map<WideKey, WideAlgorithm> entries;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    WideKey key;
    WideAlgorithm algorithm{};
    fields >> key.kind >> key.in >> key.out >> key.rows >> std::hex;
    for (uint64_t& word : algorithm) fields >> word;
    if (!fields) return corrupt(path, "line \"" + line + "\" is not an entry");
    entries[key] = algorithm;
  }
  entries_ = std::move(entries);
  return {};
}

Status WideCache::save(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, folder.string() + ": " + error.message());
  return write_file_atomically(path, serialize());
}

std::optional<WideAlgorithm> WideCache::find(const WideKey& key) const {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  return it->second;
}

}  // namespace tandem::engine
