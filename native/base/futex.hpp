// Sleeping on a word of shared memory. Where the system has no shared futex, one looks at the word
// now and then: whoever wakes must have changed it, and callers check their condition in any case.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace phalanx {

enum class Woken { kYes, kBySignal };

// Returns when the word is no longer `seen`, on a wake, on a signal, or after `limit`; perhaps for
// no reason at all.
Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace phalanx
