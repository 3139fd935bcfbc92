// Errors that name the places of the calls: on the page, in abort notices, and
// when nobody says any.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "base/call_site.hpp"
#include "support/messages.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::vector<int>> kPlaces{{0, 0},    {0, 0, 0},    {0, 1},
                                            {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 2}};

std::string place_of(int rank) {
    std::string place = "r";  // gcc 12 warns of "r" + to_string, wrongly
    return place.append(std::to_string(rank)).append(".py:7");
}

// Runs it on all ranks, each of which stands at a place of its own.
std::vector<std::exception_ptr> run(World& world, const World::Body& body) {
    return world.run([&](Group& group) {
        stand_at(place_of(group.rank()));
        body(group);
    });
}

// The text of all of these ranks, which must be one.
std::string text_of(const std::vector<std::exception_ptr>& thrown, const std::vector<int>& ranks,
                    AbortKind kind) {
    std::string text;
    for (const int rank : ranks) {
        const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
        REQUIRE(reason);
        CHECK_MESSAGE(reason->kind == kind, reason->message);
        if (text.empty()) text = reason->message;
        CHECK(reason->message == text);
    }
    return text;
}

std::vector<int> all_of(const World& world) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
    return ranks;
}

}  // namespace

TEST_CASE("gaps in a text are found, filled and closed") {
    std::string text = "rank 1: barrier" + site_gap(1) + " met rank 12: all_sum" + site_gap(12);
    CHECK(site_gaps(text) == std::vector<int>{1, 12});
    fill_site_gap(text, 12, "a.py:3");
    CHECK(site_gaps(text) == std::vector<int>{1});
    fill_site_gap(text, 1, "");
    CHECK(text == "rank 1: barrier met rank 12: all_sum at a.py:3");
    text = "one" + site_gap(1) + " two" + site_gap(22).substr(0, 2);
    close_site_gaps(text);
    CHECK(text == "one two");
}

TEST_CASE("a site that is read is whole, and of the operation asked for") {
    const ControlPage page = ControlPage::in_process(2, 0);
    std::atomic<bool> is_over{false};
    std::vector<std::jthread> writers;
    for (const char letter : {'a', 'b'}) {
        writers.emplace_back([&, letter] {
            for (std::size_t i = 0; !is_over.load(); ++i) {
                page.show_site(1, 0, 5, Activity::word_of(2, 7), std::string(1 + i % 200, letter));
            }
        });
    }
    const auto give_up_at = Clock::now() + kPatience;
    int n_seen = 0;
    while (n_seen < 2000 && Clock::now() < give_up_at) {
        const auto seen = page.site(1, 5, Activity::word_of(1, 7));
        if (!seen) continue;
        ++n_seen;
        REQUIRE(!seen->empty());
        CHECK(std::count(seen->begin(), seen->end(), seen->front()) ==
              static_cast<std::ptrdiff_t>(seen->size()));
    }
    is_over = true;
    writers.clear();
    CHECK(n_seen == 2000);
    CHECK(page.site(1, 5, Activity::word_of(2, 7)));
    CHECK_FALSE(page.site(1, 5, Activity::word_of(2, 8)));
    CHECK_FALSE(page.site(1, 6, Activity::word_of(2, 7)));
    CHECK_FALSE(page.site(0, 5, Activity::word_of(2, 7)));
    CHECK_FALSE(page.current_site(1));  // it is in nothing
    page.activity(1).begin_group(0, 3, 5);
    page.activity(1).enter(0, Activity::word_of(2, 7));
    REQUIRE(page.current_site(1));
    CHECK(page.current_site(1)->tag == 5);
}

TEST_CASE("a mismatch names both places, in the same words on all ranks" *
          doctest::test_suite("promise")) {
    for (const auto& hosts : kPlaces) {
        for (const Wire wire : {Wire::kSockets, Wire::kMemory}) {
            for (const int odd : {0, static_cast<int>(hosts.size()) - 1}) {
                CAPTURE(hosts.size());
                CAPTURE(odd);
                World world({hosts, wire, tiny_tuning(), 1, nullptr});
                world.run_well([](Group& group) { group.run(Call{}); });
                const auto begin = Clock::now();
                const auto thrown = run(world, [&](Group& group) {
                    FloatArrays array(400);
                    group.run(group.rank() == odd ? Call{} : array.call());
                });
                CHECK(Clock::now() - begin < bound_of(1s));
                const auto text = text_of(thrown, all_of(world), AbortKind::kMismatch);
                const std::string sum = "all_sum #2 (float32, shape (400,))";
                CHECK(text.find("barrier #2 at " + place_of(odd)) != std::string::npos);
                bool has_other = false;
                for (int rank = 0; rank < world.size(); ++rank) {
                    const auto name = "rank " + std::to_string(rank) + ": " + sum;
                    has_other |= rank != odd &&
                                 text.find(name + " at " + place_of(rank)) != std::string::npos;
                }
                CHECK_MESSAGE(has_other, text);
            }
        }
    }
}

TEST_CASE(
    "a mismatch among those that came names both places while others "
    "never come") {
    for (const auto& hosts : std::vector<std::vector<int>>{{0, 0, 0}, {0, 1, 2}}) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto thrown = run(world, [&](Group& group) {
            if (group.rank() == 2) return;
            FloatArrays array(400);
            group.run(group.rank() == 0 ? Call{} : array.call());
        });
        CHECK(text_of(thrown, {0, 1}, AbortKind::kMismatch) ==
              "rank 1: all_sum #1 (float32, shape (400,)) at r1.py:7 met rank 0: "
              "barrier #1 at "
              "r0.py:7");
    }
}

TEST_CASE("a third rank that only hears of a mismatch learns both places") {
    // Rank 2 comes when the others have long given up, and hears their last
    // words.
    World world({{0, 1, 2}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::latch is_over(2);
    const auto thrown = run(world, [&](Group& group) {
        const CountDownAtExit leaving{is_over, group.rank() != 2};
        if (group.rank() == 2) is_over.wait();
        FloatArrays array(group.rank() == 0 ? 4 : 5);
        group.run(array.call());
    });
    CHECK(text_of(thrown, all_of(world), AbortKind::kMismatch) ==
          "rank 1: all_sum #1 (float32, shape (5,)) at r1.py:7 met rank 0: "
          "all_sum #1 (float32, "
          "shape (4,)) at r0.py:7");
}

TEST_CASE("what was queued fails with the place of who queued it") {
    for (const auto& hosts : std::vector<std::vector<int>>{{0, 0}, {0, 1}}) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        std::vector<FloatArrays> arrays{FloatArrays(3), FloatArrays(4)};
        const auto thrown = run(world, [&](Group& group) {
            const std::string site = place_of(group.rank()) + "0";
            Call call = arrays[static_cast<std::size_t>(group.rank())].call();
            call.site = &site;
            const auto work = group.submit(call, nullptr);
            group.wait(*work, std::nullopt, nullptr);
        });
        CHECK(text_of(thrown, {0, 1}, AbortKind::kMismatch) ==
              "rank 1: all_sum #1 (float32, shape (4,)) at r1.py:70 met rank 0: "
              "all_sum #1 "
              "(float32, shape (3,)) at r0.py:70");
    }
}

TEST_CASE(
    "a mismatch of messages names the receiver's place, and the sender's "
    "if it waits") {
    // The receiver comes when the sender says on its page where it waits. It asks one of another
    // host, which may not be running at the moment, and does not wait long for the answer: one of
    // some attempts has it, and no text has anything else.
    const auto mismatch = [](const std::vector<int>& hosts, bool is_large) {
        World world(options(hosts));
        const std::size_t count = is_large ? 10'000'000 : 4;
        std::latch is_met(1);
        const auto thrown = run(world, [&](Group& group) {
            if (group.rank() == 0) {
                send(group, 1, count);
                is_met.wait();
                group.run(Call{});
            }
            const CountDownAtExit leaving{is_met};
            if (is_large) {
                REQUIRE(wait_until([&] { return world.page_of(0).current_site(0).has_value(); }));
            }
            (void)recv(group, 0, 5);
        });
        const std::string text =
            "rank 1: recv #1 from rank 0 (float32, shape (5,)) at r1.py:7 met rank 0: send #1 "
            "to rank 1 (float32, shape (" +
            std::to_string(count) + ",))";
        bool has_place = false;
        for (const auto& one : thrown) {
            const auto reason = reason_of(one);
            REQUIRE(reason);
            CHECK(reason->kind == AbortKind::kMismatch);
            REQUIRE(reason->message.find(text) == 0);
            const std::string rest = reason->message.substr(text.size());
            CHECK_MESSAGE((rest.empty() || rest == " at r0.py:7"), rest);
            has_place |= !rest.empty();
        }
        return has_place;
    };
    for (const auto& hosts : std::vector<std::vector<int>>{{0, 0}, {0, 1}}) {
        CHECK_FALSE(mismatch(hosts, false));  // a small message is no longer its sender's affair
        bool has_place = false;
        const int n_attempts = hosts == std::vector<int>{0, 0} ? 1 : 3;
        for (int attempt = 0; attempt < n_attempts && !has_place; ++attempt) {
            has_place = mismatch(hosts, true);
        }
        CHECK(has_place);
    }
}

TEST_CASE("a rank that waits long says where, on its page") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::latch is_over(1);
    const auto thrown = run(world, [&](Group& group) {
        if (group.rank() == 1) {
            REQUIRE(wait_until([&] { return world.page_of(1).current_site(0).has_value(); }));
            CHECK(world.page_of(1).current_site(0)->text == "r0.py:7");
        }
        group.run(Call{});
    });
    CHECK_FALSE(thrown[0]);
    CHECK_FALSE(thrown[1]);
    CHECK_FALSE(world.page_of(1).current_site(0));
}

TEST_CASE("a deadline says who had come, who had not, and what those were doing") {
    World world({{0, 0, 0, 0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    FloatArrays four(4);
    std::latch is_over(2);
    std::latch are_idle(2);
    WaitsInCall others(2);
    const auto thrown = run(world, [&](Group& group) {
        for (int i = 0; i < 2; ++i) group.run(Call{});
        const CountDownAtExit leaving{is_over, group.rank() == 0 || group.rank() == 2};
        if (group.rank() == 1 || group.rank() == 3) {
            are_idle.count_down();
            return is_over.wait();
        }
        if (group.rank() == 4) {
            Floats array(3);
            Call message = array.call(OpKind::kRecv, 1);
            others.watch(message);
            return group.run(message);
        }
        Call call = four.call();
        if (group.rank() == 2) others.watch(call);
        if (group.rank() == 0) {  // its time begins when all the others are where they stay
            others.wait();
            are_idle.wait();
            call.timeout = 60ms;
        }
        FloatArrays mine(4);
        call.x = reinterpret_cast<const std::byte*>(mine.x.data());
        call.out = reinterpret_cast<std::byte*>(mine.out.data());
        group.run(call);
    });
    CHECK(text_of(thrown, {0, 2, 4}, AbortKind::kTimeout) ==
          "rank 0: all_sum #3 (float32, shape (4,)) at r0.py:7 timed out after "
          "0.06 s; missing: "
          "ranks 1, 3 (in no operation, last completed barrier #2), rank 4 (in "
          "recv #1 from rank 1 "
          "at r4.py:7, last completed barrier #2); had come: ranks 0, 2");
}

TEST_CASE("of another host a deadline says what is known: whose it is") {
    World world({{0, 0, 1, 1}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::latch is_over(2);
    WaitsInCall other;
    const auto thrown = run(world, [&](Group& group) {
        if (group.rank() > 1) return is_over.wait();
        const CountDownAtExit leaving{is_over};
        Call call;
        if (group.rank() == 1) {
            other.watch(call);
        } else {
            other.wait();
            call.timeout = 60ms;
        }
        group.run(call);
    });
    // Rank 1 waits for its leader only, and takes what that has to say.
    CHECK(text_of(thrown, {0, 1}, AbortKind::kTimeout) ==
          "rank 0: barrier #1 at r0.py:7 timed out after 0.06 s; missing: one of "
          "ranks 2, 3 (on "
          "b); had come: ranks 0, 1");
}

TEST_CASE("a group's own deadline is that of calls that give none") {
    World world(options({0, 0}));
    world.run_well([](Group& group) {
        CHECK_FALSE(group.timeout());
        group.set_timeout(kPatience);
        CHECK(group.timeout() == Clock::duration(kPatience));
        group.run(Call{});
    });
    world.group(0).set_timeout(std::nullopt);
    world.group(0).set_timeout(60ms);
    for (const int which : {0, 1, 2}) {
        world.renew(static_cast<std::uint64_t>(which + 2));
        world.group(0).set_timeout(60ms);
        const auto thrown = run(world, [&](Group& group) {
            if (group.rank() == 1) return;
            if (which == 1) return (void)recv(group, 1, 3);
            if (which == 0) return group.run(Call{});
            const std::string site = "s.py:1";
            Call call;
            call.site = &site;
            group.wait(*group.submit(call, nullptr), std::nullopt, nullptr);
        });
        const auto text = text_of(thrown, {0}, AbortKind::kTimeout);
        CHECK_MESSAGE(text.find(" timed out after 0.06 s; missing: rank 1 (") != std::string::npos,
                      text);
    }
}
