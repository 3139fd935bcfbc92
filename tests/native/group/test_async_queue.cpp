// Operations that were handed over: their order, their failure, and the end of
// their group.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::vector<int>> kHosts{{0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 2}};

}  // namespace

TEST_CASE(
    "submitted operations run in order, and those called meanwhile after "
    "them") {
    for (const auto& hosts : kHosts) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto size = static_cast<float>(hosts.size());
        world.run_well([&](Group& group) {
            for (int round = 0; round < 20; ++round) {
                std::vector<FloatArrays> sums;
                for (std::size_t i = 0; i < 8; ++i) sums.emplace_back(1 + i * 97);
                std::vector<std::shared_ptr<AsyncOperation>> works;
                for (auto& sum : sums) works.push_back(group.submit(sum.call(), nullptr));
                FloatArrays after(300, 2.F);
                group.run(after.call());
                for (const auto& work : works) CHECK(work->is_done());
                CHECK(after.out.back() == 2 * size);
                for (std::size_t i = 0; i < works.size(); ++i) {
                    group.wait(*works[i], std::nullopt, nullptr);
                    CHECK(sums[i].out.front() == size);
                    CHECK(sums[i].out.back() == size);
                }
                CHECK(group.is_idle());
            }
        });
    }
}

TEST_CASE("an owner lives until its operation is over and somebody drops it") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::vector<std::weak_ptr<int>> owners(2);
    std::vector<FloatArrays> sums(2, FloatArrays(100));
    world.run_well([&](Group& group) {
        const auto me = static_cast<std::size_t>(group.rank());
        auto owner = std::make_shared<int>(1);
        owners[me] = owner;
        group.submit(sums[me].call(), std::move(owner));  // nobody keeps the work
        Call barrier;
        group.run(barrier);
        CHECK_FALSE(owners[me].expired());
        group.drop_finished();
        CHECK(owners[me].expired());
    });
    CHECK(sums[0].out.back() == 2.F);
}

TEST_CASE("a wait that is too short ends only itself") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::atomic<bool> has_waited{false};
    world.run_well([&](Group& group) {
        FloatArrays sum(10);
        if (group.rank() == 1) {
            has_waited.wait(false);
            return group.run(sum.call());
        }
        const auto work = group.submit(sum.call(), nullptr);
        try {
            group.wait(*work, 20ms, nullptr);
            FAIL("it was over");
        } catch (const Aborted& error) {
            CHECK(error.reason.kind == AbortKind::kTimeout);
            CHECK(error.reason.message.find("still under way") != std::string::npos);
        }
        CHECK_FALSE(work->is_done());
        CHECK_FALSE(group.failure());
        CHECK(world.page_of(0).activity(0).of(0).queued.load() == 1);
        has_waited = true;
        has_waited.notify_all();
        group.wait(*work, std::nullopt, nullptr);
        CHECK(world.page_of(0).activity(0).of(0).queued.load() == 0);
        CHECK(sum.out.front() == 2.F);
    });
}

TEST_CASE("an operation's own time runs from its submission, also behind others") {
    for (const bool is_queued : {false, true}) {
        World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 1) return;
            FloatArrays first(10), second(10);
            if (is_queued) group.submit(first.call(), nullptr);
            Call call = second.call();
            call.timeout = 50ms;
            const auto work = group.submit(call, nullptr);
            group.wait(*work, std::nullopt, nullptr);
        });
        const auto reason = reason_of(thrown[0]);
        REQUIRE(reason);
        CHECK(reason->kind == AbortKind::kTimeout);
        CHECK_MESSAGE(reason->message.find("all_sum") != std::string::npos, reason->message);
        CHECK(reason->message.find("0.05 s") != std::string::npos);
    }
}

TEST_CASE(
    "an interrupt of a wait frees everybody, and the rest of the queue "
    "fails alike") {
    for (const auto& hosts : kHosts) {
        if (hosts == std::vector<int>{0, 0, 1, 1}) continue;  // as in test_failure.cpp
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 1) return;
            FloatArrays one(10), two(10);
            const auto first = group.submit(one.call(), nullptr);
            const auto second = group.submit(two.call(), nullptr);
            if (group.rank() != 0) return group.wait(*first, std::nullopt, nullptr);
            CHECK_THROWS_AS(group.wait(*first, std::nullopt, [] { return true; }), Interrupted);
            CHECK(first->is_done());
            group.wait(*second, std::nullopt, nullptr);
        });
        for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
            if (rank == 1) continue;
            REQUIRE(reason_of(thrown[rank]));
            CHECK(reason_of(thrown[rank])->kind == AbortKind::kInterrupted);
        }
    }
}

TEST_CASE("a failure that nobody waited for is raised by the next operation") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    const auto thrown = world.run([&](Group& group) {
        FloatArrays sum(group.rank() == 0 ? 10 : 11);
        auto work = group.submit(sum.call(), nullptr);
        REQUIRE(wait_until([&] { return work->is_done(); }));
        work.reset();
        group.run(Call{});
    });
    for (const auto& one : thrown) {
        REQUIRE(reason_of(one));
        CHECK(reason_of(one)->kind == AbortKind::kMismatch);
    }
}

TEST_CASE("more than the queue holds are submitted one after the other") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    world.run_well([&](Group& group) {
        FloatArrays sum(10);
        for (std::uint32_t i = 0; i < 3 * AsyncQueue::kMost; ++i) group.submit(sum.call(), nullptr);
        group.run(Call{});
        CHECK(group.operations() == 3 * AsyncQueue::kMost + 1);
    });
}

TEST_CASE("submitting to a full queue can be interrupted, and ends with the group") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    FloatArrays sum(10);
    Group& group = world.group(0);  // rank 1 does not come
    for (std::uint32_t i = 0; i < AsyncQueue::kMost; ++i) group.submit(sum.call(), nullptr);
    Call call = sum.call();
    call.interrupt = [] { return true; };
    CHECK_THROWS_AS(group.submit(call, nullptr), Interrupted);
    CHECK_FALSE(group.failure());
    call.interrupt = nullptr;
    call.timeout = 10ms;
    CHECK_THROWS_AS(group.submit(call, nullptr), Aborted);
    CHECK_FALSE(group.failure());
    group.close();
    CHECK_THROWS_AS(group.submit(call, nullptr), Closed);
}

TEST_CASE("who waited for room over the end of the epoch counts nothing in the next one") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    FloatArrays sum(10);
    Group& group = world.group(0);  // rank 1 does not come
    auto& queued = world.page_of(0).activity(0).of(0).queued;
    for (std::uint32_t i = 0; i < AsyncQueue::kMost; ++i) group.submit(sum.call(), nullptr);
    Call call = sum.call();
    bool has_ended = false;
    call.interrupt = [&] {
        if (has_ended) return false;
        has_ended = true;
        group.abort({AbortKind::kError, 0, "enough"});
        CHECK(group.wait_until_idle(kPatience));
        // As the group of the next epoch does.
        world.page_of(0).begin_group(0, 0, 2, 0);
        CHECK(queued.load() == 0);
        return false;
    };
    CHECK_THROWS_AS(group.submit(call, nullptr), Aborted);
    CHECK(has_ended);
    CHECK(queued.load() == 0);
}

TEST_CASE("closing a group ends what it has queued, and tells the others") {
    for (const bool is_destroyed : {false, true}) {
        World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
        FloatArrays sum(10);
        const auto first = world.group(0).submit(sum.call(), nullptr);
        const auto second = world.group(0).submit(sum.call(), nullptr);
        if (is_destroyed) {
            world.destroy(0);
        } else {
            world.group(0).close();
        }
        CHECK(first->is_done());
        CHECK(second->is_done());
        CHECK_THROWS_AS(first->check(), Error);
        CHECK_THROWS_AS(second->check(), Error);
        try {
            world.group(1).run(Call{});
            FAIL("no error");
        } catch (const Aborted& error) {
            CHECK(error.reason.message == "rank 0 closed the group");
        }
    }
}

TEST_CASE("threads that submit and threads that call share a group without harm") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    world.run_well([&](Group& group) {
        // All make the same call, so any order of the threads fits.
        const auto body = [&](bool is_later) {
            for (int i = 0; i < 200; ++i) {
                FloatArrays sum(50);
                if (is_later) {
                    const auto work = group.submit(sum.call(), nullptr);
                    group.wait(*work, std::nullopt, nullptr);
                    group.drop_finished();
                } else {
                    group.run(sum.call());
                }
                REQUIRE(sum.out.back() == 2.F);
            }
        };
        std::jthread other([&] { body(true); });
        body(false);
    });
}

TEST_CASE("in a group of one a submitted operation is over at once") {
    GroupOptions options;
    options.hosts = {0};
    Group group(std::move(options));
    FloatArrays sum(10);
    const auto work = group.submit(sum.call(), nullptr);
    CHECK(work->is_done());
    CHECK(sum.out.back() == 1.F);
}
