#include "router/stream/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : include_(include) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern p;
    p.failure.assign(stop.size(), 0);
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = p.failure[k - 1];
      if (stop[i] == stop[k]) ++k;
      p.failure[i] = static_cast<uint32_t>(k);
    }
    p.text = std::move(stop);
    patterns_.push_back(std::move(p));
  }
}

bool StopMatcher::push(std::string_view piece, std::string& out) {
  if (patterns_.empty()) {
    out += piece;
    return false;
  }
  for (size_t i = 0; i < piece.size(); ++i) {
    size_t found = 0;
    for (Pattern& p : patterns_) {
      while (p.state > 0 && (p.state == p.text.size() || p.text[p.state] != piece[i])) {
        p.state = p.failure[p.state - 1];
      }
      if (p.text[p.state] == piece[i]) ++p.state;
      if (p.state == p.text.size()) found = std::max(found, p.text.size());
    }
    if (found == 0) continue;
    held_.append(piece.substr(0, i + 1));
    out.append(held_, 0, held_.size() - (include_ ? 0 : found));
    held_.clear();
    return true;
  }
  size_t hold = 0;
  for (const Pattern& p : patterns_) hold = std::max<size_t>(hold, p.state);
  held_ += piece;
  out.append(held_, 0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return false;
}

void StopMatcher::flush(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace tandem::router
