// What the reader of a queue advises its writer: to write past the caches, because lines that were
// just written come slowly to the core it sits on.
#pragma once

#include <cstdint>

#include "base/placement.hpp"

namespace phalanx {

// Concurrency: the thread that reads.
class StreamingAdvice {
  public:
    // Steps read until one is taken as a sample: 0.2 us of 1 to 6 each (16 KiB near and far).
    static constexpr unsigned kStepsPerSample = 4;

    // `capacity`: bytes of the queue.
    StreamingAdvice(std::uint64_t capacity, bool is_always_far) noexcept
        : capacity_(capacity), placement_(is_always_far) {}

    [[nodiscard]] bool is_given() const noexcept { return is_given_; }

    // Whether the step at `tail`, which is about to be read, is to be a sample. Only what came
    // through a cache is one: for a turn of the queue after a change it may be either.
    [[nodiscard]] bool wants_sample(std::uint64_t tail) noexcept {
        return !is_given_ && tail >= sampled_from_ && ++steps_ % kStepsPerSample == 0;
    }
    void saw(Placement::Nanoseconds took, std::uint64_t tail) noexcept {
        placement_.saw(took);
        if (placement_.is_far()) change(true, tail);
    }
    // Takes the advice back now and then, to see whether it still holds.
    void look(Clock::time_point now, std::uint64_t tail) noexcept {
        if (is_given_ && !placement_.wants_streaming(now)) change(false, tail);
    }

  private:
    void change(bool is_given, std::uint64_t tail) noexcept {
        is_given_ = is_given;
        sampled_from_ = tail + capacity_;
    }

    std::uint64_t capacity_;
    Placement placement_;
    bool is_given_ = false;
    std::uint64_t sampled_from_ = 0;
    unsigned steps_ = 0;
};

}  // namespace phalanx
