// How bytes are copied. Which way is best depends on whether the cores share a cache; it may
// differ from rank to rank, because it never changes what is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace phalanx {

inline void copy_cached(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
    if (nbytes > 0 && to != from) std::memcpy(to, from, nbytes);
}

}  // namespace phalanx
