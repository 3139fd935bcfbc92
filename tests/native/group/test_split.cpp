// Groups of a part of the world: they stand beside it, and speak of the world's
// ranks.
#include <doctest/doctest.h>

#include <thread>

#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

std::string message_of(Group& group, const Call& call) {
    try {
        group.run(call);
    } catch (const Aborted& error) {
        return error.reason.message;
    }
    return "no error";
}

}  // namespace

TEST_CASE("two splits and the world are at work at the same time") {
    World world({{0, 0, 0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    const auto even = world.split({2, 0}, 1, 11);
    const auto odd = world.split({1, 3}, 1, 12);
    world.run_well([&](Group& group) {
        const int me = group.rank();
        Group& part = me % 2 == 1 ? *odd[me == 1 ? 0 : 1] : *even[me == 2 ? 0 : 1];
        std::jthread other([&] {
            for (int i = 0; i < 200; ++i) {
                FloatArrays sum(40, 2.F);
                part.run(sum.call());
                REQUIRE(sum.out.back() == 4.F);
            }
        });
        for (int i = 0; i < 200; ++i) {
            FloatArrays sum(60);
            group.run(sum.call());
            REQUIRE(sum.out.back() == 4.F);
        }
    });
}

TEST_CASE("errors of a split name ranks of the world") {
    const auto fail = [](auto&& change, int who) {
        World world({{0, 0, 0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto groups = world.split({3, 1}, 1, 11);
        std::vector<std::string> said(2);
        {
            std::vector<std::jthread> threads;
            for (std::size_t i = 0; i < 2; ++i) {
                threads.emplace_back([&, i] {
                    FloatArrays sum(10);
                    Call call = sum.call();
                    if (change(*groups[i], call)) said[i] = message_of(*groups[i], call);
                });
            }
        }
        return said[static_cast<std::size_t>(who)];
    };
    CHECK(fail(
              [](Group& group, Call& call) {
                  if (group.rank() == 1) call.kind = OpKind::kSplit;
                  return true;
              },
              0) == "rank 1: split #1 met rank 3: all_sum #1 (float32, shape (10,))");
    CHECK(fail(
              [](Group& group, Call& call) {
                  call.timeout = 20ms;
                  return group.rank() == 1;
              },
              1) ==
          "rank 1: all_sum #1 (float32, shape (10,)) timed out after "
          "0.02 s; missing: rank 3 (in no operation, has completed none)");
    CHECK(fail(
              [](Group& group, Call&) {
                  if (group.rank() == 0) group.close();
                  return group.rank() == 1;
              },
              1) ==
          "rank 3 closed the group; rank 1 was in all_sum #1 (float32, "
          "shape (10,))");
}

TEST_CASE("a channel is free only when every member has left it") {
    World world({{0, 0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    const auto first = world.split({0, 1}, 1, 11);
    CHECK_FALSE(first[0]->all_members_left());
    first[0]->close();
    CHECK_FALSE(first[0]->all_members_left());
    first[1]->close();
    CHECK(first[1]->all_members_left());
    // Rank 1 is in another group there, before rank 0 has looked.
    const auto second = world.split({1, 2}, 1, 12);
    CHECK(first[0]->all_members_left());
    CHECK(first[0]->all_members_left());
}

TEST_CASE("the page tells the groups of a rank apart") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    auto& activity = world.page_of(0).activity(0);
    const auto of_world = [](std::uint64_t epoch) { return Activity::kWorldTag | epoch; };
    CHECK(activity.of(0).tag.load() == of_world(1));
    CHECK(activity.of(1).tag.load() == 0);
    auto groups = world.split({0, 1}, 1, 11);
    CHECK(activity.of(1).tag.load() == 11);
    std::jthread one([&] { groups[1]->run(Call{}); });
    groups[0]->run(Call{});
    one.join();
    CHECK(Activity::seq_of(activity.of(1).done.load()) == 1);
    CHECK(activity.of(0).done.load() == 0);
    groups[0]->close();
    CHECK(activity.of(1).tag.load() == 0);
    // The next epoch begins before the group of this one is closed.
    GroupOptions alone;
    alone.epoch = 2;
    alone.hosts = {0};
    alone.page = std::make_shared<ControlPage>(world.page_of(0).view_as(0));
    const Group next(std::move(alone));
    world.destroy(0);
    CHECK(activity.of(0).tag.load() == of_world(2));
}
