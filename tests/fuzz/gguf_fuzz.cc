// A GGUF file of any content through the whole loader: a model whose every tensor can be read, or
// an error. The file lies in memory behind a descriptor, so opening costs microseconds.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/model/checkpoint.h"
#include "common/model/gguf.h"
#include "common/model/text.h"

namespace {

using tandem::model::Checkpoint;

void read_all(const Checkpoint& c) {
  for (const auto& spec : tandem::model::expected_tensors(c.config())) {
    const auto t = c.tensor(spec.name);
    TANDEM_CHECK(t.has_value(), "a checked tensor that is not there");
    std::vector<float> row(static_cast<size_t>(t->view.shape.back()));
    tandem::model::read_row(t->view, 0, row);
    tandem::model::read_row(t->view, t->view.shape.size() < 2 ? 0 : t->view.rows() - 1, row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto parsed = tandem::model::GgufFile::parse(bytes, "fuzz");
  if (!parsed) {
    TANDEM_CHECK(!parsed.error().detail.empty(), "an error without a message");
    return 0;  // the loader would stop at the same place
  }
  (void)tandem::model::gguf_vocabulary(*parsed);

  const int fd = ::memfd_create("gguf", MFD_CLOEXEC);
  TANDEM_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), "no memory file");
  const auto c = Checkpoint::open("/proc/self/fd/" + std::to_string(fd));
  if (c) read_all(**c);
  ::close(fd);
  return 0;
}
