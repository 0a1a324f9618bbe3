#pragma once

#include <string>

namespace tandem::control {
class Hello;
}

namespace tandem::router {

// What two nodes disagree on, in plain words with what to change, or empty. `other` names whom
// `hello` is compared with. Pure.
[[nodiscard]] std::string difference(const control::Hello& hello, const control::Hello& reference,
                                     const std::string& other);

}  // namespace tandem::router
