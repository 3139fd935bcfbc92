// Copy with streaming stores of SSE2, which every x86-64 has. Wider stores are no faster, because
// memory is the limit.
#include "base/copy.hpp"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace phalanx {

#if defined(__SSE2__)

namespace {
constexpr std::uint64_t kLine = 64;  // bytes that a core combines before a write past the caches
}

void copy_streaming(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
    if (to == from) return;
    // Stream whole lines only: a partial line would be fetched, merged and written back.
    const auto misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
    const std::uint64_t head = std::min(nbytes, misaligned == 0 ? 0 : kLine - misaligned);
    copy_cached(to, from, head);
    const std::uint64_t lines = (nbytes - head) / kLine;
    for (std::uint64_t line = 0; line < lines; ++line) {
        const auto* source = reinterpret_cast<const __m128i*>(from + head + line * kLine);
        auto* target = reinterpret_cast<__m128i*>(to + head + line * kLine);
        const __m128i a = _mm_loadu_si128(source);
        const __m128i b = _mm_loadu_si128(source + 1);
        const __m128i c = _mm_loadu_si128(source + 2);
        const __m128i d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    const std::uint64_t done = head + lines * kLine;
    copy_cached(to + done, from + done, nbytes - done);
}

// Streaming stores are weakly ordered: a release store alone would not order them.
void streaming_fence() noexcept { _mm_sfence(); }

#else

void copy_streaming(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
    copy_cached(to, from, nbytes);
}

void streaming_fence() noexcept {}

#endif

}  // namespace phalanx
