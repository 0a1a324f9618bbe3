#include "common/base/run_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/fd.h"

namespace tandem {
namespace {

// Names and addresses hold nothing that JSON must escape but these.
void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  out += '"';
}

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, path + ": " + what + ": " + std::strerror(errno));
}

Status write_and_rename(const std::string& part, const std::string& path,
                        std::string_view content) {
  {
    Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) return io_error(part, "cannot create");
    while (!content.empty()) {
      const ssize_t written = ::write(fd.get(), content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return io_error(part, "cannot write");
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) return io_error(path, "cannot rename");
  return {};
}

}  // namespace

Status write_file_atomically(const std::string& path, std::string_view content) {
  const std::string part = path + "." + std::to_string(::getpid()) + ".part";
  const Status written = write_and_rename(part, path, content);
  // A role that is restarted while the disk is full must not leave a file each time.
  if (!written) ::unlink(part.c_str());
  return written;
}

Status publish_endpoints(const std::string& run_dir, std::string_view role, std::string_view name,
                         const std::map<std::string, std::string>& endpoints) {
  std::string json = "{\"role\":";
  append_quoted(json, role);
  json += ",\"name\":";
  append_quoted(json, name);
  json += ",\"pid\":" + std::to_string(::getpid()) + ",\"endpoints\":{";
  bool first = true;
  for (const auto& [kind, address] : endpoints) {
    if (!first) json += ',';
    first = false;
    append_quoted(json, kind);
    json += ':';
    append_quoted(json, address);
  }
  json += "}}\n";
  return write_file_atomically(run_dir + "/" + std::string(name) + ".json", json);
}

}  // namespace tandem
