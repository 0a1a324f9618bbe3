#include "common/node/page_copy.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/kv/transcode.h"
#include "common/node/handover.h"

namespace tandem::node {
namespace {

struct Place {
  std::byte* data = nullptr;
  kv::KvLayout layout;
};

// Where a pool keeps page `block` of a request in `layer`. The open page of a layout that needs one
// is in its tail slot.
Place place(const PageSet& set, uint32_t layer, uint32_t block, bool open) {
  const engine::KvPages& p = set.pages;
  if (open && p.layout.needs_tail()) {
    return {p.open_page(layer, set.tail).data(), p.layout.tail_layout()};
  }
  return {p.page(layer, set.blocks[block]).data(), p.layout};
}

size_t largest_page(const kv::KvLayout& layout) {
  return layout.needs_tail() ? std::max(layout.page_bytes(), layout.tail_layout().page_bytes())
                             : layout.page_bytes();
}

}  // namespace

size_t least_staging(const kv::KvLayout& a, const kv::KvLayout& b) {
  return std::max(largest_page(a), largest_page(b));
}

PageCopy::PageCopy(const MoveJob& job, std::span<std::byte> staging)
    : job_(job), staging_(staging) {
  const uint32_t blocks = blocks_for(job.tokens);
  TANDEM_CHECK(blocks <= job.from.blocks.size() && blocks <= job.to.blocks.size(),
               "a move of more positions than its blocks hold");
  TANDEM_CHECK(staging.size() >= largest_page(job.from.pages.layout), "staging below one page");
  per_layer_ = blocks - std::min(job.first_block, blocks);
  count_ = uint64_t{per_layer_} * job.from.pages.layout.layers;
}

PageCopy::Page PageCopy::page(uint64_t index) const {
  const auto layer = static_cast<uint32_t>(index / per_layer_);
  const auto block = job_.first_block + static_cast<uint32_t>(index % per_layer_);
  const uint32_t rows = std::min(kv::kBlockTokens, job_.tokens - block * kv::kBlockTokens);
  const bool open = rows < kv::kBlockTokens;
  const Place from = place(job_.from, layer, block, open);
  const Place to = place(job_.to, layer, block, open);
  return {.from = from.data,
          .to = to.data,
          .from_layout = from.layout,
          .to_layout = to.layout,
          .rows = rows};
}

Result<bool> PageCopy::next() {
  if (next_ == count_) return false;
  batch_.clear();
  pieces_.clear();
  size_t used = 0;
  size_t written = 0;
  for (; next_ < count_; ++next_) {
    const Page p = page(next_);
    const size_t bytes = p.from_layout.page_bytes();
    if (used + bytes > staging_.size()) break;
    pieces_.push_back({.page = p.from, .host = staging_.data() + used, .bytes = bytes});
    used += bytes;
    written += p.to_layout.page_bytes();
    batch_.push_back(p);
  }
  TANDEM_TRY(job_.from.memory->to_host(pieces_));
  const bool same = job_.from.pages.layout == job_.to.pages.layout;
  if (!same) encoded_.resize(written);
  size_t at = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const Page& p = batch_[i];
    std::byte* host = pieces_[i].host;
    if (!same) {
      kv::transcode_page(p.from_layout, host, p.to_layout, encoded_.data() + at, p.rows);
      host = encoded_.data() + at;
    }
    pieces_[i] = {.page = p.to, .host = host, .bytes = p.to_layout.page_bytes()};
    at += pieces_[i].bytes;
  }
  TANDEM_TRY(job_.to.memory->from_host(pieces_));
  bytes_ += written;
  return true;
}

}  // namespace tandem::node
