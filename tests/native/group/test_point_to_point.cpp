// Messages from rank to rank: in an arena, over sockets, and among threads of
// one rank.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <thread>

#include "support/messages.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {
// 64 KiB is 16384 floats.
const std::vector<std::size_t> kCounts{0, 1, 1021, 16384, 16385, 300'007};
}  // namespace

TEST_CASE("every rank to every other, all sizes, small and large queues") {
    for (const auto& hosts : kHosts) {
        for (const std::size_t region : {std::size_t{0}, Arena::kDefaultBytes}) {
            for (const Wire wire : {Wire::kTcp, Wire::kSockets, Wire::kMemory}) {
                WorldOptions described = options(hosts, wire);
                described.region_nbytes = region;
                World world(described);
                std::atomic<int> n_right{0};
                world.run_well([&](Group& group) {
                    for (const std::size_t count : kCounts) {
                        if (wire == Wire::kMemory && count > 20'000) continue;  // a slow deque
                        for (int step = 1; step < group.size(); ++step) {
                            const int to = (group.rank() + step) % group.size();
                            const int from = (group.rank() - step + group.size()) % group.size();
                            // In an order that cannot deadlock, whatever is buffered.
                            const auto give = [&] {
                                send(group, to, count, static_cast<float>(group.rank()));
                            };
                            if (group.rank() < from) give();
                            n_right += recv(group, from, count, static_cast<float>(from));
                            if (group.rank() > from) give();
                        }
                    }
                });
                const int counts = wire == Wire::kMemory ? 5 : 6;
                CHECK(n_right == world.size() * (world.size() - 1) * counts);
                // Sent and received.
                CHECK(world.page_of(0).totals(0).messages.operations ==
                      static_cast<std::uint64_t>(2 * counts * (world.size() - 1)));
            }
        }
    }
}

TEST_CASE(
    "64 KiB are sent though nobody has come: matched exchanges cannot "
    "deadlock") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        std::latch all_sent(world.size());
        world.run_well([&](Group& group) {
            for (int peer = 0; peer < group.size(); ++peer) {
                if (peer != group.rank()) send(group, peer, 16384, 3.F);
            }
            all_sent.arrive_and_wait();
            for (int peer = 0; peer < group.size(); ++peer) {
                if (peer != group.rank()) CHECK(recv(group, peer, 16384, 3.F));
            }
        });
    }
}

TEST_CASE("a wire takes 64 KiB and a header though the other end has hardly room") {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int one = ::socket(AF_INET, SOCK_STREAM, 0);
    for (const int fd : {listener, one}) {
        const int little = 2048;
        REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
        REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little) == 0);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener, generic, length) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, generic, &length) == 0);
    REQUIRE(::connect(one, generic, length) == 0);
    const auto here = make_pair_wire(1, one);
    const auto there = make_pair_wire(0, ::accept(listener, nullptr, nullptr));
    ::close(listener);
    const std::vector<std::byte> bytes(sizeof(Op) + PointToPoint::kBufferedBytes + 8);
    for (const auto* wire : {&here, &there}) {  // both ways at once
        std::size_t sent = 0;
        while (const auto taken = wire->out->try_send(std::span(bytes).subspan(sent))) {
            sent += taken;
        }
        CHECK(sent == bytes.size());
    }
}

TEST_CASE("a message that nobody has received stands in no collective's way") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        world.run_well([&](Group& group) {
            const int last = group.size() - 1;
            if (group.rank() == 0) send(group, last, 1000);
            group.run(Call{});
            if (group.rank() == last) CHECK(recv(group, 0, 1000));
            group.run(Call{});
        });
    }
}

TEST_CASE("one thread sends, one receives, one sums: none takes another's turn") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        const int n_rounds = 20;
        world.run_well([&](Group& group) {
            const int next = (group.rank() + 1) % group.size();
            const int before = (group.rank() + group.size() - 1) % group.size();
            std::atomic<int> n_right{0};
            {
                std::jthread sender([&] {
                    for (int i = 0; i < n_rounds; ++i) send(group, next, 20'000);
                });
                std::jthread receiver([&] {
                    for (int i = 0; i < n_rounds; ++i) n_right += recv(group, before, 20'000);
                });
                for (int i = 0; i < n_rounds; ++i) group.run(Call{});
            }
            CHECK(n_right == n_rounds);
        });
    }
}

TEST_CASE("what was sent before a rank closed is received after it") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        std::latch is_closed(1);
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 1) {
                send(group, 0, 16384, 5.F);
                send(group, 0, 3, 6.F);
                group.close();
                is_closed.count_down();
            } else if (group.rank() == 0) {
                is_closed.wait();
                CHECK(recv(group, 1, 16384, 5.F));
                CHECK(recv(group, 1, 3, 6.F));
                (void)recv(group, 1, 3);
            }
        });
        const auto reason = reason_of(thrown[0]);
        REQUIRE(reason);
        CHECK_MESSAGE(reason->kind == AbortKind::kClosed, reason->message);
        CHECK(reason->culprit == 1);
        CHECK(reason->message.find("rank 1 closed the group; rank 0 was in recv #") == 0);
    }
}

TEST_CASE("the page shows what message a rank waits for, while it waits") {
    World world(options({0, 0}));
    world.run_well([&](Group& group) {
        const auto& pair = world.page_of(0).activity(0).pair;
        if (group.rank() == 0) {
            CHECK(recv(group, 1, 10));
            CHECK(pair == 0);
        } else {
            REQUIRE(wait_until([&] { return pair != 0; }));
            CHECK(pair == Activity::word_of(0, true, 1, 1));
            send(group, 0, 10);
        }
    });
}

TEST_CASE("the page counts the messages that have passed, and says who waits for the next") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        const auto tally = [&](int rank, int peer, bool is_recv) {
            auto& page = world.page_of(rank);
            return page.tally(page.author(), 0, peer, is_recv)->load();
        };
        world.run_well([&](Group& group) {
            if (group.rank() > 1) return;
            if (group.rank() == 0) {
                for (int i = 0; i < 3; ++i) send(group, 1, 10);
                CHECK(tally(0, 1, false) == 3);
                CHECK(tally(0, 1, true) == 0);
                CHECK(recv(group, 1, 10));
                CHECK(tally(0, 1, true) == 1);
                // Too much for anything that lies between the two.
                send(group, 1, kTooMuch);
                CHECK(tally(0, 1, false) == 4);
            } else {
                for (int i = 0; i < 3; ++i) CHECK(recv(group, 0, 10));
                CHECK(tally(1, 0, true) == 3);
                REQUIRE(wait_until([&] { return tally(0, 1, true) == kTallyWaits; }));
                CHECK(tally(0, 1, false) == 3);
                send(group, 0, 10);
                REQUIRE(wait_until([&] { return tally(0, 1, false) == (kTallyWaits | 3); }));
                CHECK(recv(group, 0, kTooMuch));
                CHECK(tally(1, 0, true) == 4);
                CHECK(tally(1, 0, false) == 1);
            }
        });
        world.renew(2);
        for (const int rank : {0, 1}) {
            for (const bool is_recv : {false, true}) CHECK(tally(rank, 1 - rank, is_recv) == 0);
        }
    }
}

TEST_CASE("a send is said to wait once a wire has not moved for a while") {
    World world(options({0, 1}));
    const auto begin = Clock::now();
    world.run_well([&](Group& group) {
        if (group.rank() == 0) return send(group, 1, kTooMuch);
        const auto& sent = *world.page_of(0).tally(0, 0, 1, false);
        REQUIRE(wait_until([&] { return sent == kTallyWaits; }));
        CHECK(Clock::now() - begin >= Waiter::kPatience);
        CHECK(recv(group, 0, kTooMuch));
        CHECK(*world.page_of(1).tally(0, 0, 0, true) == 1);
    });
}

TEST_CASE("a new epoch begins with empty queues") {
    World world(options({0, 0, 1}));
    world.run_well([](Group& group) {
        if (group.rank() == 0) send(group, 1, 1000);
        if (group.rank() == 0) send(group, 2, 1000);
    });
    world.renew(2);
    world.run_well([](Group& group) {
        if (group.rank() == 0) send(group, 1, 7);
        if (group.rank() == 0) send(group, 2, 7);
        if (group.rank() > 0) CHECK(recv(group, 0, 7));
    });
}

TEST_CASE("wrong peers are refused, and the group is as good as before") {
    Floats array(3);
    World world(options({0, 0}));
    World alone(options({0}));
    for (const OpKind kind : {OpKind::kSend, OpKind::kRecv}) {
        for (const int peer : {4, -1, 1}) {
            CHECK_THROWS_AS(world.group(1).run(array.call(kind, peer)), UsageError);
        }
        CHECK_THROWS_AS(alone.group(0).run(array.call(kind, 0)), UsageError);
    }
    world.run_well([](Group& group) { group.run(Call{}); });
}
