// A stop that holds a rank before its next operation: who waits there, who is let in, and what is
// left of it.
#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "base/cpu.hpp"
#include "support/messages.hpp"

using namespace phalanx;
using namespace phalanx::test;

namespace {

World two_ranks() { return World({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr}); }

Hold& hold_of(World& world, int rank) { return world.page_of(rank).hold(rank); }

// Of the thread that calls it, as the control thread of its process does.
void hold_me(World& world, Group& group) { hold_of(world, group.rank()).set(this_thread_number()); }

// Which all_sum the rank is held before; 0 if it is in none.
std::uint64_t held_before(World& world, int rank) {
    const auto seen = hold_of(world, rank).look();
    return seen ? Activity::seq_of(seen->word) : 0;
}

void let_in(World& world, int rank, std::uint64_t number) {
    Hold& hold = hold_of(world, rank);
    hold.until[0].store(number);
    hold.ring();
}

}  // namespace

TEST_CASE("a held rank begins what it is let into, and is held before the next") {
    World world = two_ranks();
    std::jthread stop([&] {
        CHECK(wait_until([&] { return held_before(world, 1) == 3; }));
        CHECK(world.page_of(1).activity(1).begun(0) == 2);
        CHECK(world.page_of(1).activity(1).of(0).current.load() == 0);
        CHECK(wait_until([&] { return world.page_of(0).activity(0).begun(0) == 3; }));
        let_in(world, 1, 3);
        CHECK(wait_until([&] { return held_before(world, 1) == 4; }));
        hold_of(world, 1).release();
    });
    world.run_well([&](Group& group) {
        for (int i = 0; i < 5; ++i) {
            if (group.rank() == 1 && i == 2) hold_me(world, group);
            FloatArrays sum(10);
            group.run(sum.call());
            CHECK(sum.out.back() == 2.F);
        }
    });
    CHECK(hold_of(world, 1).state.load() == Hold::kNone);
}

TEST_CASE("who is interrupted while held leaves the group as it was") {
    World world = two_ranks();
    std::atomic<bool> is_stopped{false};
    std::jthread stop([&] {
        CHECK(wait_until([&] { return held_before(world, 0) == 2 && held_before(world, 1) == 2; }));
        is_stopped = true;
        for (const int rank : {0, 1}) {
            CHECK(hold_of(world, rank).drop());  // held until the interrupt has come
            hold_of(world, rank).ring();
        }
    });
    world.run_well([&](Group& group) {
        FloatArrays sum(10);
        group.run(sum.call());
        hold_me(world, group);
        Call call = sum.call();
        call.interrupt = [&] { return is_stopped.load(); };
        CHECK_THROWS_AS(group.run(call), Interrupted);
        CHECK(hold_of(world, group.rank()).state.load() == Hold::kNone);
        CHECK_FALSE(group.failure());
        group.run(sum.call());  // in the same epoch, and as number 2 on both
        CHECK(sum.out.back() == 2.F);
    });
    CHECK(world.page_of(0).activity(0).begun(0) == 2);
}

TEST_CASE("what was submitted has begun, and what comes after it is held") {
    World world = two_ranks();
    std::atomic<bool> has_seen{false};
    std::jthread stop([&] {
        CHECK(wait_until([&] { return held_before(world, 1) == 1; }));
        // Rank 0 has submitted three: its own thread waits in the first.
        CHECK(wait_until([&] { return world.page_of(0).activity(0).begun(0) == 3; }));
        let_in(world, 1, 3);
        CHECK(wait_until([&] { return held_before(world, 0) == 4 && held_before(world, 1) == 4; }));
        has_seen = true;
        for (const int rank : {0, 1}) hold_of(world, rank).release();
    });
    world.run_well([&](Group& group) {
        std::vector<FloatArrays> sums(4, FloatArrays(10));
        if (group.rank() == 1) hold_me(world, group);
        for (std::size_t i = 0; i < 3; ++i) group.submit(sums[i].call(), nullptr);
        if (group.rank() == 0) hold_me(world, group);
        group.run(sums[3].call());
        CHECK(has_seen);
        for (const auto& sum : sums) CHECK(sum.out.back() == 2.F);
    });
}

TEST_CASE("messages are held by lane") {
    World world = two_ranks();
    std::atomic<bool> is_released{false};
    std::jthread stop([&] {
        const auto is_held_before = [&](std::uint64_t number) {
            const auto seen = hold_of(world, 1).look();
            return seen && seen->word == Activity::word_of(0, true, 0, number);
        };
        CHECK(wait_until([&] { return is_held_before(1); }));
        LetIn* const until = world.page_of(1).let_in(1, 0, 0, true);
        CHECK(wait_until([&] { return world.page_of(0).tally(0, 0, 1, false)->load() == 2; }));
        until->store(2);
        hold_of(world, 1).ring();
        CHECK(wait_until([&] { return is_held_before(3); }));
        CHECK(until->load() == 2);
        hold_of(world, 1).release();
        is_released = true;
        is_released.notify_all();
    });
    world.run_well([&](Group& group) {
        if (group.rank() == 0) {
            for (int i = 0; i < 2; ++i) send(group, 1, 10, 3.F);
            is_released.wait(false);
            return send(group, 1, 10, 3.F);
        }
        hold_me(world, group);
        for (int i = 0; i < 3; ++i) CHECK(recv(group, 0, 10, 3.F));
    });
}

TEST_CASE("an abort frees a held rank, and other threads are not held") {
    World world = two_ranks();
    std::jthread stop([&] {
        const auto has_left = [&] {
            Activity& its = world.page_of(1).activity(1);
            return its.begun(0) == 1 && its.of(0).current.load() == 0;
        };
        CHECK(wait_until([&] { return held_before(world, 0) == 2 && has_left(); }));
        world.group(1).abort({AbortKind::kError, 1, "enough"});
    });
    const auto thrown = world.run([&](Group& group) {
        FloatArrays sum(10);
        if (group.rank() == 1) {
            hold_of(world, 1).set(this_thread_number() + 1);  // another thread's
            return group.run(sum.call());
        }
        group.run(sum.call());
        hold_me(world, group);
        group.run(sum.call());
    });
    CHECK_FALSE(thrown[1]);
    REQUIRE(reason_of(thrown[0]));
    CHECK(reason_of(thrown[0])->message == "enough");
    CHECK(hold_of(world, 0).state.load() == Hold::kSet);
}

TEST_CASE("a rank that is not held is interrupted where it is, and held no more") {
    World world = two_ranks();
    hold_of(world, 0).set(this_thread_number());
    CHECK_FALSE(hold_of(world, 0).drop());
    CHECK(hold_of(world, 0).state.load() == Hold::kNone);
    CHECK_FALSE(hold_of(world, 0).look());
    world.run_well([&](Group& group) {
        FloatArrays sum(10);
        group.run(sum.call());
    });
}

TEST_CASE("a new group begins with nothing let in") {
    World world = two_ranks();
    let_in(world, 0, 7);
    world.page_of(0).let_in(0, 0, 1, true)->store(7);
    world.page_of(0).begin_group(0, 0, 2, 0);
    CHECK(hold_of(world, 0).until[0].load() == 0);
    CHECK(world.page_of(0).let_in(0, 0, 1, true)->load() == 0);
}
