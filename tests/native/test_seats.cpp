// Who changes to another core, and that a thread which does has moved and is as free as before.
#include <doctest/doctest.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <vector>

#include "base/cpu.hpp"
#include "transport/seats.hpp"

using namespace phalanx;
using namespace std::chrono_literals;

namespace {

const std::vector<int> kTwo{0, 1};
const Clock::time_point kNow{1h};

int better(const std::vector<int>& cores, int me, std::vector<int> usable = kTwo) {
    std::vector<std::uint64_t> words;
    for (const int core : cores) words.push_back(core < 0 ? 0 : SeatView::word_of(core, kNow));
    return SeatView::better_core(words, me, kNow, usable);
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

TEST_CASE("a seat that was seen long ago is nobody's") {
    const std::vector<std::uint64_t> words{SeatView::word_of(0, kNow - SeatView::kFresh - 1ms),
                                           SeatView::word_of(0, kNow)};
    CHECK(SeatView::better_core(words, 1, kNow, kTwo) == -1);
    const std::vector<std::uint64_t> fresh{SeatView::word_of(0, kNow - SeatView::kFresh),
                                           SeatView::word_of(0, kNow)};
    CHECK(SeatView::better_core(fresh, 1, kNow, kTwo) == 1);
}

#ifdef __linux__
TEST_CASE("a thread that waits beside another one moves, once in a while, and stays free") {
    const std::vector<int> cores = usable_core_list();
    if (cores.size() < 2) return;  // nowhere to go
    REQUIRE(move_to_core(cores[0]));
    std::vector<Seat> memory(3);
    const std::vector<Seat*> seats{&memory[0], &memory[1], &memory[2]};
    const auto now = Clock::now();
    // The rest of the cores are taken, but for one.
    memory[0] = SeatView::word_of(current_core(), now);
    Seats mine;
    CHECK(mine.is_due(now));
    for (int look = 1; look < Seats::kLooksForMove; ++look) {
        mine.look(seats, 1, now);
        CHECK((memory[1].load() & 0xFFFF) == (memory[0].load() & 0xFFFF));
    }
    mine.look(seats, 1, now);
    const int there = static_cast<int>(memory[1].load() & 0xFFFF) - 1;
    CHECK(there != static_cast<int>(memory[0].load() & 0xFFFF) - 1);
    CHECK(usable_core_list() == cores);
    CHECK_FALSE(mine.is_due(now));
    CHECK(mine.is_due(now + Seats::kBetweenLooks));
    // Not again so soon.
    memory[0] = SeatView::word_of(current_core(), now + 2ms);
    for (int look = 0; look < Seats::kLooksForMove; ++look) mine.look(seats, 1, now + 2ms);
    CHECK((memory[1].load() & 0xFFFF) == (memory[0].load() & 0xFFFF));
}
#endif
