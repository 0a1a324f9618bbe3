#include "tools/cli/command.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace tandem::cli {

void run(CommandContext& context, std::string_view name, const std::function<Status()>& command) {
  const Status status = command();
  if (status) return;
  context.exit_code = report_exit("tandem " + std::string(name), status.error());
}

Result<std::string> read_text_file(const std::string& path, size_t limit) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                "cannot open " + path + ": " + std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    if (text.size() + got > limit) {
      return fail(ErrorCode::kPayloadTooLarge,
                  path + " is larger than " + std::to_string(limit >> 20) + " MiB");
    }
    text.append(buffer, got);
  }
  if (std::ferror(file.get()) != 0) {
    return fail(ErrorCode::kIo, "cannot read " + path + ": " + std::strerror(errno));
  }
  return text;
}

}  // namespace tandem::cli
