// Implement core_balancer.hpp.
#include "shm/core_balancer.hpp"

#include <algorithm>
#include <array>

namespace phalanx {

namespace {

constexpr int kCoreBits = 16;

std::uint64_t ms_of(Clock::time_point now) noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count());
}

}  // namespace

std::uint64_t CoreChoice::word_of(int core, Clock::time_point now) noexcept {
    return ms_of(now) << kCoreBits | static_cast<std::uint64_t>(core + 1);
}

int CoreChoice::better_core(std::span<const std::uint64_t> words, int me, Clock::time_point now,
                            std::span<const int> usable) {
    const std::uint64_t now_ms = ms_of(now);
    const auto core_of = [&](std::uint64_t word) {
        const bool is_fresh = now_ms <= (word >> kCoreBits) + kFresh.count();
        const int core = static_cast<int>(word & ((1U << kCoreBits) - 1)) - 1;
        return is_fresh && core < kMostCores ? core : -1;
    };
    std::array<int, kMostCores> n_ranks{};
    for (const std::uint64_t word : words) {
        if (core_of(word) >= 0) ++n_ranks[static_cast<std::size_t>(core_of(word))];
    }
    const int here = core_of(words[static_cast<std::size_t>(me)]);
    if (here < 0) return -1;
    for (std::size_t other = static_cast<std::size_t>(me) + 1; other < words.size(); ++other) {
        if (core_of(words[other]) == here) return -1;
    }
    const auto of = [&](int core) { return n_ranks[static_cast<std::size_t>(core)]; };
    int best = -1;
    for (const int core : usable) {
        if (core < kMostCores && (best < 0 || of(core) < of(best))) best = core;
    }
    return best >= 0 && of(best) + 2 <= of(here) ? best : -1;
}

void CoreBalancer::choose_core(std::span<CoreHint* const> hints, int me, int core,
                               Clock::time_point now, FunctionRef<std::vector<int>()> usable,
                               FunctionRef<bool(int)> move) {
    next_look_ = now + kBetweenLooks;
    if (core < 0) return;
    CoreHint& own = *hints[static_cast<std::size_t>(me)];
    own.store(CoreChoice::word_of(core, now), std::memory_order_relaxed);
    if (now < next_move_) return;
    std::vector<std::uint64_t> words;
    int n_here = 0;
    for (CoreHint* hint : hints) {
        words.push_back(hint->load(std::memory_order_relaxed));
        n_here += (words.back() & ((1U << kCoreBits) - 1)) == static_cast<std::uint64_t>(core + 1);
    }
    // Set this rank's word again: another thread of the rank may wait too, on another core.
    words[static_cast<std::size_t>(me)] = CoreChoice::word_of(core, now);
    // Ask the kernel for the usable cores only if another rank waits on this core.
    const int better = n_here < 2 ? -1 : CoreChoice::better_core(words, me, now, usable());
    n_wanted_ = better < 0 ? 0 : n_wanted_ + 1;
    if (n_wanted_ < kLooksForMove) return;
    n_wanted_ = 0;
    next_move_ = now + kBetweenMoves;
    if (move(better)) {
        own.store(CoreChoice::word_of(better, now), std::memory_order_relaxed);
    }
}

}  // namespace phalanx
