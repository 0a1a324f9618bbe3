#include "common/preflight/finding.h"

#include <utility>

namespace tandem::preflight {

Finding finding_of(std::string key, const Error& error) {
  const size_t end = error.detail.find("; ");
  return {.refuses = true,
          .origin = {},
          .key = std::move(key),
          .value = {},
          .reason = error.detail.substr(0, end),
          .remedy = end == std::string::npos ? std::string() : error.detail.substr(end + 2)};
}

std::string to_string(const Finding& finding) {
  std::string text = finding.origin.empty() ? "" : finding.origin + ": ";
  text += finding.key + ": ";
  if (!finding.value.empty()) text += finding.value + ": ";
  text += finding.reason;
  if (!finding.remedy.empty()) text += "; " + finding.remedy;
  return text;
}

Status refusal(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (!finding.refuses) continue;
    text += (text.empty() ? "" : "\n") + to_string(finding);
  }
  return text.empty() ? Status() : fail(ErrorCode::kConfig, std::move(text));
}

}  // namespace tandem::preflight
