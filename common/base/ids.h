#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tandem {

// A number that cannot be mistaken for another kind of number: no implicit conversion either way.
template <typename Tag, typename Rep>
struct StrongId {
  using rep = Rep;
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

// One HTTP choice on its way through the cluster (a request with n=4 is four of these).
using RequestId = StrongId<struct RequestIdTag, uint64_t>;
// One prefill-to-decode hand-over, issued by the router; a retry gets a new one.
using TransferId = StrongId<struct TransferIdTag, uint64_t>;
// Random per process start; messages of another generation are dropped and counted. 0: none.
using Generation = StrongId<struct GenerationTag, uint64_t>;
// Index of a 16-token block in one node's pool.
using BlockId = StrongId<struct BlockIdTag, uint32_t>;

// Token ids are plain integers: they index vocabularies and logits everywhere.
using TokenId = int32_t;

}  // namespace tandem

template <typename Tag, typename Rep>
struct std::hash<tandem::StrongId<Tag, Rep>> {
  size_t operator()(const tandem::StrongId<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
