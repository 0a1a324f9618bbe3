#include "tools/cli/command.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

namespace tandem::cli {

void run(CommandContext& context, std::string_view name, const std::function<Status()>& command) {
  const Status status = command();
  if (status) return;
  context.exit_code = report_exit("tandem " + std::string(name), status.error());
}

Error about_argument(Error error, std::string argument) {
  if (error.code == ErrorCode::kNotFound || error.code == ErrorCode::kIo) {
    error.code = ErrorCode::kInvalidArgument;
    if (error.param.empty()) error.param = std::move(argument);
  }
  return error;
}

Result<std::string> read_text_file(const std::string& path, size_t limit) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) {
    return fail(ErrorCode::kInvalidArgument, "cannot open " + path + ": " + std::strerror(errno));
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
    return fail(errno == EISDIR ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
                "cannot read " + path + ": " + std::strerror(errno));
  }
  return text;
}

}  // namespace tandem::cli
