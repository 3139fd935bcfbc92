// How bytes are copied. Which way is best depends on whether the cores share a cache; it may
// differ from rank to rank and from moment to moment, because it never changes what is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace phalanx {

inline void copy_cached(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
    if (nbytes > 0 && to != from) std::memcpy(to, from, nbytes);
}

// Past the caches, with streaming stores where the machine has them: for a reader on a core with
// another cache, to which lines that were just written travel slowly (RESULTS.md section 0: 1.9
// GB/s instead of 36). Not ordered with anything until `streaming_fence`.
void copy_streaming(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept;

// All streaming copies of this thread come before its later stores: before they are published.
void streaming_fence() noexcept;

}  // namespace phalanx
