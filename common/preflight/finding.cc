#include "common/preflight/finding.h"

namespace tandem::preflight {

std::string to_string(const Finding& finding) {
  std::string text = finding.key + ": ";
  if (!finding.value.empty()) text += finding.value + ": ";
  text += finding.reason;
  if (!finding.remedy.empty()) text += "; " + finding.remedy;
  return text;
}

}  // namespace tandem::preflight
