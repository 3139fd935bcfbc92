// On which cores the ranks of a machine wait, and when one of them should change to another core.
// Knows nothing of what is waited for.
//
// Ranks that wait in turns yield and never sleep, so a core with one rank never looks idle to the
// kernel, and it leaves three beside one, or two on a core that has just lost a third process, for
// milliseconds or for good: an operation of 8 us then takes 20. MPI libraries bind ranks to cores
// for that; a notebook's ranks have threads of their own, so nothing is bound here: a rank that
// waits asks for the better core once, and its affinity is what it was.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/function_ref.hpp"

namespace phalanx {

// In shared memory, of one rank: the core on which it was seen waiting, and when. 0: never.
using Seat = std::atomic<std::uint64_t>;

class SeatView {
  public:
    static constexpr int kMostCores = 1024;
    // Older ones are of ranks that compute, or of none.
    static constexpr std::chrono::milliseconds kFresh{5};

    // As a word of shared memory.
    static std::uint64_t word_of(int core, Clock::time_point now) noexcept;

    // The core to which the rank `me` should go: one of `usable` with two fewer of the ranks that
    // wait than its own core has; -1 if it should stay. Of those on a core the last one goes, so
    // that not all of them do.
    static int better_core(std::span<const std::uint64_t> words, int me, Clock::time_point now,
                           std::span<const int> usable);
};

// A waiting thread's part in it.
class Seats {
  public:
    static constexpr std::chrono::milliseconds kBetweenLooks{1};
    // So often in a row a look finds the same: the kernel's own moves come between two looks.
    static constexpr int kLooksForMove = 4;
    // A move costs some 20 us: a machine that has other plans for its cores loses little.
    static constexpr std::chrono::milliseconds kBetweenMoves{10};

    // True if it is time to look: no more than a comparison.
    [[nodiscard]] bool is_due(Clock::time_point now) const noexcept { return now >= next_look_; }
    // Shows `core`, on which this thread is (-1: not known), as the seat of `me`, and calls `move`
    // with a better one of those that `usable` tells.
    void look(std::span<Seat* const> seats, int me, int core, Clock::time_point now,
              FunctionRef<std::vector<int>()> usable, FunctionRef<bool(int)> move);

  private:
    Clock::time_point next_look_{};
    Clock::time_point next_move_{};
    int n_wanted_ = 0;  // looks in a row that wanted a move
};

}  // namespace phalanx
