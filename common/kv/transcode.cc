#include "common/kv/transcode.h"

#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/base/dtype.h"
#include "common/kv/codec.h"

namespace tandem::kv {

void transcode_page(const KvLayout& from, const std::byte* source, const KvLayout& to,
                    std::byte* target, uint32_t rows) {
  TANDEM_CHECK(rows <= kBlockTokens && from.kv_heads == to.kv_heads && from.head_dim == to.head_dim,
               "pages of different models");
  if (from == to) {
    std::memcpy(target, source, from.page_bytes());
    return;
  }
  const size_t stride = from.head_dim;
  std::vector<float> values(size_t{kBlockTokens} * stride);
  for (uint32_t head = 0; head < from.kv_heads; ++head) {
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      const std::byte* in = source + section_offset(from, head, side);
      std::byte* out = target + section_offset(to, head, side);
      for (uint32_t t = 0; t < rows; ++t) decode_row(from, side, in, t, &values[t * stride]);
      // Layouts with an open page encode from bf16 rows only (codec.h).
      if (to.needs_tail()) {
        for (float& v : values) v = to_float(to_bf16(v));
      }
      if (rows == kBlockTokens) {
        encode_section(to, side, values.data(), stride, out);
        continue;
      }
      for (uint32_t t = 0; t < rows; ++t) encode_row(to, side, t, &values[t * stride], out);
    }
  }
}

}  // namespace tandem::kv
