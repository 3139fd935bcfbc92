// Implement the futex: native on Linux and macOS 14.4 and later; elsewhere by polling.
#include "os/sync.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/platform.hpp"

#if PHALANX_LINUX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#elif defined(__APPLE__) && __has_include(<os/os_sync_wait_on_address.h>)
#include <os/os_sync_wait_on_address.h>
#define PHALANX_OS_SYNC 1
#endif

namespace phalanx {

namespace {

timespec to_timespec(std::chrono::nanoseconds limit) noexcept {
    const auto count = std::max<std::chrono::nanoseconds::rep>(limit.count(), 0);
    return {static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
}

#if !PHALANX_LINUX

// Poll until the word changes; the waker changes the word before a wake. The poll interval grows
// with the wait: a wait ends late by at most an eighth, or 50 us, and a wait of hours costs 100
// polls a second.
[[maybe_unused]] Woken look_until_changed(const std::atomic<std::uint32_t>& word,
                                          std::uint32_t seen,
                                          std::chrono::nanoseconds limit) noexcept {
    using std::chrono::nanoseconds;
    constexpr nanoseconds kShortest = std::chrono::microseconds(50);
    constexpr nanoseconds kLongest = std::chrono::milliseconds(10);
    const auto begin = std::chrono::steady_clock::now();
    while (word.load(std::memory_order_seq_cst) == seen) {
        const nanoseconds waited = std::chrono::steady_clock::now() - begin;
        if (waited >= limit) break;
        const timespec nap =
            to_timespec(std::min(std::clamp(waited / 8, kShortest, kLongest), limit - waited));
        if (::nanosleep(&nap, nullptr) != 0 && errno == EINTR) return Woken::kBySignal;
    }
    return Woken::kYes;
}

#endif

}  // namespace

#if PHALANX_LINUX

// Shared futexes (no FUTEX_PRIVATE_FLAG), because several processes map the word.
Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept {
    const timespec time = to_timespec(limit);
    const long result = ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
    return result != 0 && errno == EINTR ? Woken::kBySignal : Woken::kYes;
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#elif defined(PHALANX_OS_SYNC)

Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept {
    if (__builtin_available(macOS 14.4, *)) {
        if (limit.count() <= 0) return Woken::kYes;  // macOS refuses a limit of 0
        void* const address = const_cast<std::atomic<std::uint32_t>*>(&word);
        const int result = ::os_sync_wait_on_address_with_timeout(
            address, seen, sizeof word, OS_SYNC_WAIT_ON_ADDRESS_SHARED, OS_CLOCK_MACH_ABSOLUTE_TIME,
            static_cast<std::uint64_t>(limit.count()));
        return result < 0 && errno == EINTR ? Woken::kBySignal : Woken::kYes;
    }
    return look_until_changed(word, seen, limit);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
    if (__builtin_available(macOS 14.4, *)) {
        void* const address = const_cast<std::atomic<std::uint32_t>*>(&word);
        ::os_sync_wake_by_address_all(address, sizeof word, OS_SYNC_WAKE_BY_ADDRESS_SHARED);
    }
}

#else

Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept {
    return look_until_changed(word, seen, limit);
}

void futex_wake_all(const std::atomic<std::uint32_t>&) noexcept {}

#endif

}  // namespace phalanx
