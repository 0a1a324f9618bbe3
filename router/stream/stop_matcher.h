#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::router {

// Finds stop strings in a text that comes in pieces, and holds back what may become one. The stop
// whose last byte comes first wins (of several ending there, the longest), so the result does not
// depend on where the pieces end. Text that is released never has to be taken back. One thread.
class StopMatcher {
 public:
  // Stops are non-empty, valid UTF-8. `include`: the stop itself belongs to the text.
  StopMatcher(std::vector<std::string> stops, bool include);

  // Appends to `out` what of the text so far is certain. True: a stop was found, the text has
  // ended.
  bool push(std::string_view piece, std::string& out);
  // No more text: what was held is text after all.
  void flush(std::string& out);

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> failure;  // Knuth-Morris-Pratt
    uint32_t state = 0;             // bytes of `text` that the input ends with
  };
  std::vector<Pattern> patterns_;
  bool include_;
  std::string held_;
};

}  // namespace tandem::router
