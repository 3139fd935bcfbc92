// Decide whether other ranks' cores are near (share a cache with this core) or far. The measure is
// the time in which this rank reads data that a peer has just written. A virtual machine moves its
// cores, so one measurement at the start is not enough; a separate probe would need its own core.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace phalanx {

// Concurrency: one thread at a time (the group's turn, or the lane's).
class CacheDistance {
  public:
    using Nanoseconds = std::chrono::nanoseconds;
    // Bytes of a sample: 64 lines. With fewer, the clock's 50 ns would be a large part of the time.
    static constexpr std::size_t kSampleBytes = 4096;
    // Bytes per ns. Far: 1.9; near: over 20.
    static constexpr double kFarRate = 5.0;
    // A rank that was descheduled meanwhile reads slowly too; three slow reads in a row are no
    // accident.
    static constexpr int kSlowReads = 3;
    // While far, write once per interval through the cache, so that the readers can measure again.
    // Cost: 256 KiB of a collective at 1.9 GB/s take 0.14 ms, 0.3 % of the interval.
    static constexpr std::chrono::milliseconds kProbeInterval{50};

    // `is_pinned`: always far, for tests.
    explicit CacheDistance(bool is_pinned) noexcept : is_pinned_(is_pinned), is_far_(is_pinned) {}

    // Record a sample that was read in `took`: the slowest one if several peers wrote one.
    void saw(Nanoseconds took) noexcept {
        if (is_pinned_) return;
        if (static_cast<double>(kSampleBytes) > kFarRate * static_cast<double>(took.count())) {
            slow_reads_ = 0;
            is_far_ = false;
        } else if (++slow_reads_ >= kSlowReads && !is_far_) {
            is_far_ = true;
            next_probe_ = Clock::now() + kProbeInterval;
        }
    }

    // Whether to write past the caches now.
    [[nodiscard]] bool wants_streaming(Clock::time_point now) noexcept {
        if (!is_far_) return false;
        if (is_pinned_ || now < next_probe_) return true;
        next_probe_ = now + kProbeInterval;
        return false;
    }
    [[nodiscard]] bool is_far() const noexcept { return is_far_; }

  private:
    bool is_pinned_;
    bool is_far_;
    int slow_reads_ = 0;
    Clock::time_point next_probe_{};
};

// Measure the time to read a sample that another rank has written through its cache.
inline CacheDistance::Nanoseconds read_sample(const std::byte* sample) noexcept {
    constexpr std::size_t kLine = 64;
    const auto begin = Clock::now();
    unsigned seen = 0;
    for (std::size_t at = 0; at < CacheDistance::kSampleBytes; at += kLine) {
        seen += std::to_integer<unsigned>(*static_cast<const volatile std::byte*>(sample + at));
    }
    const auto took = Clock::now() - begin;
    return seen == ~0U ? took + CacheDistance::Nanoseconds(1)
                       : took;  // use `seen`: keeps the loads
}

}  // namespace phalanx
