// Linux has the real thing; elsewhere a nap of at most a millisecond.
#include "base/futex.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace phalanx {

namespace {
timespec to_timespec(std::chrono::nanoseconds limit) noexcept {
    const auto count = std::max<std::chrono::nanoseconds::rep>(limit.count(), 0);
    return {static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
}
}  // namespace

#ifdef __linux__

// Shared futexes (no FUTEX_PRIVATE_FLAG): the word is in memory of several processes.
Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept {
    const timespec time = to_timespec(limit);
    const long result = ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
    return result != 0 && errno == EINTR ? Woken::kBySignal : Woken::kYes;
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#else

Woken futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                 std::chrono::nanoseconds limit) noexcept {
    if (word.load() != seen) return Woken::kYes;
    const timespec time =
        to_timespec(std::min<std::chrono::nanoseconds>(limit, std::chrono::milliseconds(1)));
    return ::nanosleep(&time, nullptr) != 0 && errno == EINTR ? Woken::kBySignal : Woken::kYes;
}

void futex_wake_all(const std::atomic<std::uint32_t>&) noexcept {}

#endif

}  // namespace phalanx
