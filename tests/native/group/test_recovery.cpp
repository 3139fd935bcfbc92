// From one epoch to the next: what a rank that is late reads, and what it must
// not take for good.
#include <doctest/doctest.h>

#include <cmath>
#include <latch>
#include <thread>

#include "collectives/on_host/shared_memory_team.hpp"
#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

// As the next epoch's group of rank 0 would: all its memory is something else,
// and its steps are far ahead.
void use_again(World& world) {
    Waiter waiter(world.page_of(0), 0, 2, -1, WaitPolicy{});
    SharedMemoryTeam next(world.arena_of(0), world.page_of(0), 0, 2, 0, {0, 1}, {0, 1}, 0,
                          tiny_tuning().host, waiter);
    Op op;
    op.seq = 1000;
    next.publish_header(op, {});
    for (std::uint64_t chunk = 0; chunk < 2; ++chunk) {
        std::fill_n(reinterpret_cast<float*>(next.own_stage(chunk)),
                    next.chunk_nbytes() / sizeof(float), 99.F);
    }
    next.advance_phase();
}

}  // namespace

TEST_CASE(
    "a reader that stops between two chunks and goes on when the memory "
    "is another's") {
    // The link between the hosts stands still in the midst of the ring, so rank 1
    // waits for its leader with a part of the work done. There it is frozen, as a
    // debugger would do it.
    auto faults = std::make_shared<LinkFaults>();
    faults->bytes_left = 4000;
    World world({{0, 0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    std::latch is_frozen(1);
    std::latch is_reused(1);
    std::vector<FloatArrays> arrays(3, FloatArrays(20'000));
    const auto thrown = world.run([&](Group& group) {
        Call call = arrays[static_cast<std::size_t>(group.rank())].call();
        if (group.rank() == 1) {
            call.interrupt = [&, is_first = true]() mutable {
                if (!is_first || faults->bytes_left > 0) return false;
                is_first = false;
                is_frozen.count_down();
                is_reused.wait();
                return false;
            };
        }
        if (group.rank() != 0) return group.run(call);  // rank 2 hears why from rank 0
        call.interrupt = [&] { return is_frozen.try_wait(); };
        CHECK_THROWS_AS(group.run(call), Interrupted);
        CHECK_FALSE(world.group(1).wait_until_idle(1ms));  // it is still inside
        use_again(world);
        is_reused.count_down();
    });
    const auto late = reason_of(thrown[1]);
    REQUIRE(late);
    CHECK(late->message.find("was interrupted in all_sum #1") != std::string::npos);
    for (const float value : arrays[1].out) REQUIRE(std::isnan(value));
    CHECK(world.group(1).wait_until_idle(0ms));
}

TEST_CASE(
    "a split of the epoch before ends without a word on the page about "
    "the one of now") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    auto& activity = world.page_of(0).activity(0);
    auto before = world.split({0, 1}, 1, 11);
    world.page_of(0).abort(1, {AbortKind::kError, 0, "enough"});
    CHECK(before[0]->wait_until_idle(0ms));
    // The same tag and channel in the next epoch.
    world.renew(2);
    auto now = world.split({0, 1}, 1, 11);
    before.clear();
    CHECK(activity.of(1).tag.load() == 11);
    std::jthread one([&] { now[1]->run(Call{}); });
    now[0]->run(Call{});
    one.join();
    now[0]->close();
    CHECK(activity.of(1).tag.load() == 0);
}

TEST_CASE("a close that gave up is ended once the thread that was stuck inside has left") {
    for (const bool is_message : {false, true}) {
        for (const auto& hosts : std::vector<std::vector<int>>{{0, 0}, {0, 1}}) {
            CAPTURE(is_message);
            World world({hosts, Wire::kTcp, tiny_tuning(), 1, nullptr});
            FloatArrays array(100);
            Call call = is_message ? array.call(OpKind::kRecv, 1) : array.call();
            std::latch is_inside(1);
            std::latch is_closed(1);
            call.interrupt = [&, is_first = true]() mutable {
                if (is_first) {
                    is_inside.count_down();
                    is_closed.wait();  // as code that does not give the GIL back
                }
                is_first = false;
                return false;
            };
            Group& group = world.group(0);
            std::jthread stuck([&] { CHECK_THROWS_AS(group.run(call), Aborted); });
            is_inside.wait();
            group.close(20ms);
            CHECK(group.is_closed());
            CHECK_FALSE(group.wait_until_idle(1ms));
            CHECK_FALSE(group.all_members_left());
            is_closed.count_down();
            CHECK(group.wait_until_idle(kPatience));
            CHECK(group.wait_until_idle(0ms));
            // Rank 1 hears it wherever it waits.
            FloatArrays other(100);
            const auto thrown = world.run([&](Group& one) {
                if (one.rank() == 1) one.run(other.call());
            });
            REQUIRE(reason_of(thrown[1]));
            CHECK(reason_of(thrown[1])->message.starts_with("rank 0 closed the group"));
            stuck.join();
            world.renew(2);
            world.run_well([](Group& one) { one.run(Call{}); });
        }
    }
}

TEST_CASE("a closed group says whether everybody has left it") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    CHECK(world.group(0).wait_until_idle(0ms));
    world.group(0).close();
    CHECK(world.group(0).wait_until_idle(0ms));
}
