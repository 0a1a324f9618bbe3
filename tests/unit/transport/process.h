#pragma once

// What transport_process_test and its peer process share.

#include <string>
#include <vector>

#include "common/base/hex.h"
#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

inline constexpr kv::KvLayout kProcessLayout{6, 4, 64, kv::KvFormat::kInt8};

inline Status post_layer(Transport& transport, TransferId id, Pages& from, uint32_t layer) {
  std::vector<std::span<const std::byte>> pages;
  for (uint32_t i = 0; i < from.count(); ++i) pages.push_back(from.page(layer, i));
  return transport.post_pages(id, layer, 0, pages);
}

}  // namespace tandem::transport::testing
