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

// Advise the writer of a queue to write past the caches, if the reader's core reads lines slowly
// that were just written.

// Concurrency: used by the reading thread only.
class NonTemporalHint {
  public:
    // Steps per sample: a sample costs 0.2 us, a step 1 to 6 us (16 KiB near and far).
    static constexpr unsigned kStepsPerSample = 4;

    // `capacity`: size of the queue in bytes.
    NonTemporalHint(std::uint64_t capacity, bool is_always_far) noexcept
        : capacity_(capacity), cache_distance_(is_always_far) {}

    [[nodiscard]] bool is_given() const noexcept { return is_given_; }

    // Whether to sample the step at `tail`, which is about to be read. Only data that came through
    // a cache counts: for one round of the queue after a change of advice, data may have come
    // either way.
    [[nodiscard]] bool wants_sample(std::uint64_t tail) noexcept {
        return !is_given_ && tail >= sampled_from_ && ++steps_ % kStepsPerSample == 0;
    }
    void saw(CacheDistance::Nanoseconds took, std::uint64_t tail) noexcept {
        cache_distance_.saw(took);
        if (cache_distance_.is_far()) change(true, tail);
    }
    // Withdraw the advice now and then, to test whether the cores are still far.
    void look(Clock::time_point now, std::uint64_t tail) noexcept {
        if (is_given_ && !cache_distance_.wants_streaming(now)) change(false, tail);
    }

  private:
    void change(bool is_given, std::uint64_t tail) noexcept {
        is_given_ = is_given;
        sampled_from_ = tail + capacity_;
    }

    std::uint64_t capacity_;
    CacheDistance cache_distance_;
    bool is_given_ = false;
    std::uint64_t sampled_from_ = 0;
    unsigned steps_ = 0;
};

}  // namespace phalanx
