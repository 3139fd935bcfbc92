// Who changes to another core, and that a thread which does has moved and is as free as before.
#include <doctest/doctest.h>

#include <vector>

#include "base/cpu.hpp"
#include "shm/core_balancer.hpp"

using namespace phalanx;
using namespace std::chrono_literals;

namespace {

const std::vector<int> kTwo{0, 1};
const Clock::time_point kNow{1h};

int better(const std::vector<int>& cores, int me, std::vector<int> usable = kTwo) {
    std::vector<std::uint64_t> words;
    for (const int core : cores) words.push_back(core < 0 ? 0 : CoreChoice::word_of(core, kNow));
    return CoreChoice::better_core(words, me, kNow, usable);
}

}  // namespace

TEST_CASE("the last rank of a core goes where two fewer wait") {
    CHECK(better({0, 0, 0, 1}, 2) == 1);
    CHECK(better({0, 0, 0, 1}, 0) == -1);
    CHECK(better({0, 0, 0, 1}, 3) == -1);
    CHECK(better({1, 1}, 1) == 0);
    CHECK(better({0, 0, 1, 1}, 1) == -1);
    CHECK(better({0, 0, 1}, 1) == -1);          // no better there
    CHECK(better({0, 0, -1, -1}, 1) == 1);      // who computes is not counted
    CHECK(better({0, 0, 0, 1}, 2, {0}) == -1);  // not where the user does not let it
    CHECK(better({0, 0, 5, 5}, 1, {0, 5, 7}) == 7);
    CHECK(better({-1, 0}, 0) == -1);
}

TEST_CASE("a core hint that was seen long ago does not count") {
    const std::vector<std::uint64_t> words{CoreChoice::word_of(0, kNow - CoreChoice::kFresh - 1ms),
                                           CoreChoice::word_of(0, kNow)};
    CHECK(CoreChoice::better_core(words, 1, kNow, kTwo) == -1);
    const std::vector<std::uint64_t> fresh{CoreChoice::word_of(0, kNow - CoreChoice::kFresh),
                                           CoreChoice::word_of(0, kNow)};
    CHECK(CoreChoice::better_core(fresh, 1, kNow, kTwo) == 1);
}

TEST_CASE("a rank that waits beside another one moves when it has seen that often enough") {
    std::vector<CoreHint> memory(3);
    const std::vector<CoreHint*> hints{&memory[0], &memory[1], &memory[2]};
    const auto core_of = [&](std::size_t rank) {
        return static_cast<int>(memory[rank].load() & 0xFFFF) - 1;
    };
    std::vector<int> moves;
    CoreBalancer mine;
    const auto look = [&](int core, Clock::time_point now) {
        memory[0] = CoreChoice::word_of(0, now);
        mine.choose_core(
            hints, 1, core, now, [] { return kTwo; },
            [&](int to) {
                moves.push_back(to);
                return true;
            });
    };
    CHECK(mine.is_due(kNow));
    for (int i = 1; i < CoreBalancer::kLooksForMove; ++i) look(0, kNow);
    CHECK(core_of(1) == 0);
    look(1, kNow);  // the kernel was sooner: that counts from the beginning
    for (int i = 1; i < CoreBalancer::kLooksForMove; ++i) look(0, kNow);
    CHECK(moves.empty());
    look(0, kNow);
    CHECK(moves == std::vector<int>{1});
    CHECK(core_of(1) == 1);
    CHECK_FALSE(mine.is_due(kNow));
    CHECK(mine.is_due(kNow + CoreBalancer::kBetweenLooks));
    // Not again so soon.
    for (int i = 0; i < CoreBalancer::kLooksForMove; ++i) look(0, kNow + 2ms);
    CHECK(moves.size() == 1);
    for (int i = 0; i < CoreBalancer::kLooksForMove; ++i)
        look(0, kNow + CoreBalancer::kBetweenMoves);
    CHECK(moves.size() == 2);
    look(-1, kNow + 2 * CoreBalancer::kBetweenMoves);  // a system that does not say
    CHECK(moves.size() == 2);
}

TEST_CASE("a thread that has moved to a core is as free as before") {
    const std::vector<int> cores = usable_core_list();
    for (const int core : cores) CHECK(move_to_core(core));
    CHECK(usable_core_list() == cores);
    CHECK_FALSE(move_to_core(CoreChoice::kMostCores - 1));
}
