#pragma once

#include <cstddef>

namespace tandem::router {

// The document served at `/`, put together at build time.
extern const unsigned char status_page[];
extern const size_t status_page_size;

}  // namespace tandem::router
