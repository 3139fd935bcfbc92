// Track the cores on which the ranks of a machine wait, and move a rank to a better core.
//
// Ranks that wait in turns yield and never sleep, so a core with one rank never looks idle to the
// kernel. The kernel then leaves three ranks beside one, or two on a core that has just lost a
// third process, for milliseconds or forever: an operation of 8 us then takes 20. MPI libraries
// bind ranks to cores to prevent this. A notebook's ranks have threads of their own, so nothing is
// bound here: a waiting rank moves to the better core once and keeps its affinity mask.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"

namespace phalanx {

// Word in shared memory, one per rank: the core on which the rank last waited, and when. 0: never.
using CoreHint = std::atomic<std::uint64_t>;

class CoreChoice {
  public:
    static constexpr int kMostCores = 1024;
    // Older words are of ranks that compute, or of empty slots.
    static constexpr std::chrono::milliseconds kFresh{5};

    // Encodes a core and a time as a word.
    static std::uint64_t word_of(int core, Clock::time_point now) noexcept;

    // The core to which rank `me` should move: one of `usable` with at least two fewer waiting
    // ranks than its own core; -1 to stay. Of several ranks on a core only the last one moves.
    static int better_core(std::span<const std::uint64_t> words, int me, Clock::time_point now,
                           std::span<const int> usable);
};

// Looks for a better core for one waiting thread.
class CoreBalancer {
  public:
    static constexpr std::chrono::milliseconds kBetweenLooks{1};
    // Move only after so many equal results in a row: the kernel's own moves come between two
    // looks.
    static constexpr int kLooksForMove = 4;
    // A move costs some 20 us: if the kernel moves the rank back, little is lost.
    static constexpr std::chrono::milliseconds kBetweenMoves{10};

    // Whether it is time to look; costs only a comparison.
    [[nodiscard]] bool is_due(Clock::time_point now) const noexcept { return now >= next_look_; }
    // Publishes `core`, this thread's core (-1: unknown), as the hint of `me`, and calls `move`
    // with a better core of the `usable` ones, if there is one.
    void choose_core(std::span<CoreHint* const> hints, int me, int core, Clock::time_point now,
                     FunctionRef<std::vector<int>()> usable, FunctionRef<bool(int)> move);

  private:
    Clock::time_point next_look_{};
    Clock::time_point next_move_{};
    int n_wanted_ = 0;  // looks in a row that asked for a move
};

}  // namespace phalanx
