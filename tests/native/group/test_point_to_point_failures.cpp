// Messages that come to nothing: both ends learn why.
#include <doctest/doctest.h>

#include <cmath>
#include <latch>
#include <thread>

#include "support/messages.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

// A link whose stream has ended with this abort notice; another thread disturbs the first peek.
class DisturbedLink final : public Link {
  public:
    DisturbedLink(int peer, std::vector<std::byte> words) : Link(peer), words_(std::move(words)) {}
    [[nodiscard]] bool has_ended() noexcept override { return true; }

  protected:
    std::size_t do_send(Parts parts) override { return first_of(parts).size(); }
    std::size_t do_recv(std::span<std::byte> /*bytes*/, std::span<std::byte> /*more*/) override {
        return 0;
    }
    void do_finish() noexcept override {}
    Peek do_peek_tail(std::span<std::byte> bytes) noexcept override {
        if (std::exchange(is_first_, false)) return Peek::kUnclear;
        std::copy(words_.end() - static_cast<std::ptrdiff_t>(bytes.size()), words_.end(),
                  bytes.begin());
        return Peek::kFound;
    }

  private:
    std::vector<std::byte> words_;
    bool is_first_ = true;
};

}  // namespace

TEST_CASE("a peek at a peer's failure that another thread disturbed is made again") {
    auto ends = make_memory_links(0, 2, 4096);
    ends.second->send_abort_notice(1, {AbortKind::kTimeout, 2, "rank 2 has timed out"});
    std::vector<std::byte> words(4096);
    words.resize(ends.first->try_recv(words));
    GroupOptions options;
    options.size = 3;
    options.hosts = {0, 1, 2};
    std::vector<std::unique_ptr<Link>> theirs;
    for (const int peer : {1, 2}) {
        auto link = make_memory_links(0, peer, 4096);
        auto out = make_memory_links(0, peer, 4096);
        auto in = make_memory_links(0, peer, 4096);
        options.links[peer] = std::move(link.first);
        if (peer == 2) in.first = std::make_unique<DisturbedLink>(2, words);
        options.pair_links[peer] = {std::move(out.first), std::move(in.first)};
        for (auto* ours : {&link, &out, &in}) theirs.push_back(std::move(ours->second));
    }
    Group group(std::move(options));
    Floats array(10);
    Call call = array.call(OpKind::kRecv, 1);  // which never comes
    call.timeout = kPatience;
    try {
        group.run(call);
        FAIL("nobody has sent anything");
    } catch (const Aborted& error) {
        CHECK(error.reason.message == "rank 2 has timed out");
    }
}

TEST_CASE("what differs from what was sent is a mismatch that names both calls") {
    for (const auto& hosts : kHosts) {
        for (const bool is_shape : {false, true}) {
            World world(options(hosts));
            Floats out(4, 7.F);
            std::latch is_met(1);
            const auto thrown = world.run([&](Group& group) {
                if (group.rank() == 0) {
                    for (int i = 0; i < 3; ++i) send(group, 1, 4);
                    is_met.wait();
                    group.run(Call{});
                } else if (group.rank() == 1) {
                    const CountDownAtExit leaving{is_met};
                    CHECK(recv(group, 0, 4));
                    CHECK(recv(group, 0, 4));
                    Call call = out.call(OpKind::kRecv, 0);
                    const std::uint64_t square[] = {2, 2};
                    if (is_shape) {
                        call.shape = square;
                    } else {
                        call.dtype = Dtype::int64;
                        call.count = 2;
                    }
                    group.run(call);
                }
            });
            const std::string took = is_shape ? "(float32, shape (2, 2))" : "(int64, shape (4,))";
            for (const int rank : {0, 1}) {
                const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
                REQUIRE(reason);
                CHECK(reason->kind == AbortKind::kMismatch);
                CHECK(reason->message == "rank 1: recv #3 from rank 0 " + took +
                                             " met rank 0: send #3 to rank 1 "
                                             "(float32, shape (4,))");
            }
            CHECK(out.data == Floats(4, 7.F).data);  // nothing was written
        }
    }
}

TEST_CASE("a deadline names the peer, whether one receives or sends too much") {
    for (const auto& hosts : kHosts) {
        for (const bool is_recv : {true, false}) {
            World world(options(hosts));
            const auto thrown = world.run([&](Group& group) {
                if (group.rank() != 0) return;
                Floats array(kTooMuch);
                Call call = array.call(is_recv ? OpKind::kRecv : OpKind::kSend, 1);
                call.timeout = 60ms;
                group.run(call);
            });
            const auto reason = reason_of(thrown[0]);
            REQUIRE(reason);
            CHECK(reason->kind == AbortKind::kTimeout);
            CHECK(reason->culprit == 1);
            const std::string what = is_recv ? "recv #1 from rank 1" : "send #1 to rank 1";
            CHECK(reason->message.find("rank 0: " + what +
                                       " (float32, shape (10000000,)) timed out after 0.06 s; "
                                       "missing: rank 1") == 0);
        }
    }
}

TEST_CASE("who waits in a message hears of an abort, also of a third rank's" *
          doctest::test_suite("promise")) {
    for (const auto& hosts : std::vector<std::vector<int>>{{0, 0, 0}, {0, 1, 2}, {0, 0, 1}}) {
        World world(options(hosts));
        const auto begin = Clock::now();
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 2) {
                group.abort({AbortKind::kError, 2, "enough"});
            } else if (group.rank() == 0) {
                (void)recv(group, 1, 10);
            } else {
                send(group, 0, 5);
                send(group, 0, kTooMuch);
                (void)recv(group, 2, 10);
            }
        });
        CHECK(Clock::now() - begin < bound_of(2s));
        for (const int rank : {0, 1}) {
            const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
            REQUIRE(reason);
            // Rank 0 may come to the message that differs from what it expects before
            // it hears.
            if (rank == 1 || reason->kind != AbortKind::kMismatch) {
                CHECK((reason->message == "enough" || reason->kind == AbortKind::kMismatch));
            }
        }
    }
}

TEST_CASE("a third rank that gives up frees who waits for another") {
    World world(options({0, 1, 2}));
    std::latch is_waiting(1);
    const auto thrown = world.run([&](Group& group) {
        Floats array(10);
        if (group.rank() == 0) {
            Call call = array.call(OpKind::kRecv, 1);
            call.interrupt = [&, n = 0]() mutable {
                if (n++ == 0) is_waiting.count_down();
                return false;
            };
            group.run(call);
        } else if (group.rank() == 2) {
            is_waiting.wait();
            send(group, 0,
                 10);  // stays to be received, and does not hide the words behind it
            group.abort({AbortKind::kError, 2, "enough"});
        }
    });
    REQUIRE(reason_of(thrown[0]));
    CHECK(reason_of(thrown[0])->message == "enough");
}

TEST_CASE("who waits for room learns that the receiver has closed") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 1) group.close();
            if (group.rank() == 0) send(group, 1, kTooMuch);
        });
        const auto reason = reason_of(thrown[0]);
        REQUIRE(reason);
        CHECK_MESSAGE(reason->message.find("rank 1 closed the group") == 0, reason->message);
        CHECK(reason->culprit == 1);
    }
}

TEST_CASE(
    "a wire that breaks is the failure of its peer; what was begun is "
    "invalidated") {
    auto faults = std::make_shared<LinkFaults>();
    faults->bytes_left = 4000;
    World world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    Floats out(20'000);
    const auto thrown = world.run([&](Group& group) {
        Floats x(20'000);
        Call call = group.rank() == 0 ? x.call(OpKind::kSend, 1) : out.call(OpKind::kRecv, 0);
        // The wire breaks once the receiver waits in the middle of the message: at the second look
        // at a frozen wire it has read all that came.
        if (group.rank() == 1) {
            call.interrupt = [&, n_frozen = 0]() mutable {
                if (faults->bytes_left == 0 && ++n_frozen == 2) faults->is_broken = true;
                return false;
            };
        }
        group.run(call);
    });
    const auto reason = reason_of(thrown[1]);
    REQUIRE(reason);
    CHECK(reason->kind == AbortKind::kLinkBroken);
    CHECK(world.group(1).culprit_seen_by(*reason) == 0);
    CHECK(reason->message ==
          "the link between rank 0 and rank 1 broke (the other end closed it) "
          "during recv #1 from rank 0 (float32, shape (20000,)); "
          "its output was invalidated");
    CHECK(std::isnan(out.data.front()));
    CHECK(std::isnan(out.data.back()));
}

TEST_CASE("an abort notice in the place of the end of a payload is not taken for data") {
    std::vector<std::unique_ptr<Link>> ours;  // the test stands between the two ranks
    std::vector<std::unique_ptr<Group>> groups;
    for (const int rank : {0, 1}) {
        GroupOptions described;
        described.rank = rank;
        described.size = 2;
        described.hosts = {0, 1};
        const int peer = 1 - rank;
        auto link = make_memory_links(rank, peer, 4096);
        auto out = make_memory_links(rank, peer, 4096);
        auto in = make_memory_links(rank, peer, 4096);
        described.links[peer] = std::move(link.first);
        described.pair_links[peer] = {std::move(out.first), std::move(in.first)};
        groups.push_back(std::make_unique<Group>(std::move(described)));
        ours.push_back(std::move(link.second));
        ours.push_back(std::move(rank == 0 ? out.second : in.second));
        ours.push_back(std::move(rank == 0 ? in.second : out.second));
    }
    send(*groups[0], 1, 100);
    std::vector<std::byte> bytes(4096);
    const std::size_t size = ours[1]->try_recv(bytes);
    CHECK(size == sizeof(Op) + 400 + 8);
    CHECK(ours[4]->try_send(std::span(bytes).first(size - 208)) == size - 208);
    ours[4]->send_abort_notice(1, {AbortKind::kInterrupted, 0, "rank 0 was interrupted"});
    Floats out(100);
    std::string text;
    try {
        groups[1]->run(out.call(OpKind::kRecv, 0));
    } catch (const Aborted& error) {
        text = error.reason.message;
    }
    CHECK(text == "rank 0 was interrupted; its output was invalidated");
    CHECK(std::isnan(out.data.back()));
}

TEST_CASE("a group has settled once nobody is inside any more") {
    World world(options({0, 0}));
    world.run_well([&](Group& group) {
        if (group.rank() != 0) return;
        CHECK(group.wait_until_idle(0ms));  // nothing to wait for: the epoch stands
        std::latch is_waiting(1);
        std::jthread receiver([&] {
            Floats array(10);
            Call call = array.call(OpKind::kRecv, 1);
            call.interrupt = [&, n = 0]() mutable {
                if (n++ == 0) is_waiting.count_down();
                return false;
            };
            CHECK_THROWS_AS(group.run(call), Aborted);
        });
        is_waiting.wait();
        world.page_of(1).abort(1, {AbortKind::kError, 1, "enough"});
        CHECK(group.wait_until_idle(kPatience));
        // Nobody waits: an operation that still did would show itself on the page.
        CHECK(world.page_of(0).activity(0).pair == 0);
    });
}

TEST_CASE("a close from another thread frees a rank that waits for a message") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        std::jthread closer;
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() != 0) return;
            Floats array(10);
            Call call = array.call(OpKind::kRecv, 1);
            call.interrupt = [&] {
                if (!closer.joinable()) closer = std::jthread([&] { group.close(); });
                return false;
            };
            group.run(call);
        });
        REQUIRE(reason_of(thrown[0]));
        CHECK(reason_of(thrown[0])->kind == AbortKind::kClosed);
    }
}
