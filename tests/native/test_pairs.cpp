// Messages from rank to rank: in an arena, over sockets, and among threads of one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <latch>
#include <numeric>
#include <thread>

#include "world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::vector<int>> kHosts{{0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 1, 2}};
// 64 KiB is 16384 floats.
const std::vector<std::size_t> kCounts{0, 1, 1021, 16384, 16385, 300'007};

constexpr std::size_t kTooMuch = 10'000'000;  // 40 MB: no socket takes it while nobody reads

struct Array {
    std::vector<float> data;
    std::vector<std::uint64_t> shape;
    explicit Array(std::size_t count, float first = 0.F) : data(count), shape{count} {
        std::iota(data.begin(), data.end(), first);
    }
    Call call(OpKind kind, int peer) {
        Call call;
        call.kind = kind;
        call.dtype = Dtype::float32;
        call.count = data.size();
        call.shape = shape;
        call.root = peer;
        call.x = call.out = reinterpret_cast<std::byte*>(data.data());
        return call;
    }
};

void send(Group& group, int peer, std::size_t count, float first = 0.F) {
    Array array(count, first);
    group.send(array.call(OpKind::kSend, peer));
}

// What came is what was sent with this first value.
bool recv(Group& group, int peer, std::size_t count, float first = 0.F) {
    Array array(count, -1.F);
    group.recv(array.call(OpKind::kRecv, peer));
    return array.data == Array(count, first).data;
}

WorldOptions options(const std::vector<int>& hosts, Wire wire = Wire::kTcp) {
    return {hosts, wire, tiny_tuning(), 1, nullptr, Arena::kDefaultBytes};
}

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
                CHECK(world.group(0).counters().messages_sent ==
                      static_cast<std::uint64_t>(counts * (world.size() - 1)));
            }
        }
    }
}

TEST_CASE("64 KiB are sent though nobody has come: matched exchanges cannot deadlock") {
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

TEST_CASE("what differs from what was sent is a mismatch that names both calls") {
    for (const auto& hosts : kHosts) {
        for (const bool is_shape : {false, true}) {
            World world(options(hosts));
            Array out(4, 7.F);
            std::latch is_met(1);
            const auto thrown = world.run([&](Group& group) {
                if (group.rank() == 0) {
                    for (int i = 0; i < 3; ++i) send(group, 1, 4);
                    is_met.wait();
                    group.run(Call{});
                } else if (group.rank() == 1) {
                    struct Release {
                        std::latch& latch;
                        ~Release() { latch.count_down(); }
                    } release{is_met};
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
                    group.recv(call);
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
            CHECK(out.data == Array(4, 7.F).data);  // nothing was written
        }
    }
}

TEST_CASE("a deadline names the peer, whether one receives or sends too much") {
    for (const auto& hosts : kHosts) {
        for (const bool is_recv : {true, false}) {
            World world(options(hosts));
            const auto thrown = world.run([&](Group& group) {
                if (group.rank() != 0) return;
                Array array(kTooMuch);
                Call call = array.call(is_recv ? OpKind::kRecv : OpKind::kSend, 1);
                call.timeout = 60ms;
                is_recv ? group.recv(call) : group.send(call);
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

TEST_CASE("who waits in a message hears of an abort, also of a third rank's") {
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
        CHECK(Clock::now() - begin < 2s);
        for (const int rank : {0, 1}) {
            const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
            REQUIRE(reason);
            // Rank 0 may come to the message that differs from what it expects before it hears.
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
        Array array(10);
        if (group.rank() == 0) {
            Call call = array.call(OpKind::kRecv, 1);
            call.interrupt = [&, n = 0]() mutable {
                if (n++ == 0) is_waiting.count_down();
                return false;
            };
            group.recv(call);
        } else if (group.rank() == 2) {
            is_waiting.wait();
            send(group, 0, 10);  // stays to be received, and does not hide the words behind it
            group.abort({AbortKind::kError, 2, "enough"});
        }
    });
    REQUIRE(reason_of(thrown[0]));
    CHECK(reason_of(thrown[0])->message == "enough");
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
        CHECK(reason->message.find("rank 1 closed the group") == 0);
    }
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

TEST_CASE("a wire that breaks is the failure of its peer; what was begun is poisoned") {
    auto faults = std::make_shared<LinkFaults>();
    faults->bytes_left = 4000;
    World world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    Array out(20'000);
    const auto thrown = world.run([&](Group& group) {
        Array x(20'000);
        Call call = group.rank() == 0 ? x.call(OpKind::kSend, 1) : out.call(OpKind::kRecv, 0);
        // Once it waits in the middle of the message, the wire breaks.
        call.interrupt = [&] {
            faults->is_broken = true;
            return false;
        };
        group.rank() == 0 ? group.send(call) : group.recv(call);
    });
    const auto reason = reason_of(thrown[1]);
    REQUIRE(reason);
    CHECK(reason->kind == AbortKind::kRankFailure);
    CHECK(reason->culprit == 0);
    CHECK(reason->message ==
          "its connection closed during recv #1 from rank 0 (float32, shape (20000,)); "
          "its output was invalidated");
    CHECK(std::isnan(out.data.front()));
    CHECK(std::isnan(out.data.back()));
}

TEST_CASE("last words in the place of the end of a payload are not taken for data") {
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
    ours[4]->say_last_words(1, {AbortKind::kInterrupted, 0, "rank 0 was interrupted"});
    Array out(100);
    std::string text;
    try {
        groups[1]->recv(out.call(OpKind::kRecv, 0));
    } catch (const Aborted& error) {
        text = error.reason.message;
    }
    CHECK(text == "rank 0 was interrupted; its output was invalidated");
    CHECK(std::isnan(out.data.back()));
}

TEST_CASE("a close from another thread frees a rank that waits for a message") {
    for (const auto& hosts : kHosts) {
        World world(options(hosts));
        std::jthread closer;
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() != 0) return;
            Array array(10);
            Call call = array.call(OpKind::kRecv, 1);
            call.interrupt = [&] {
                if (!closer.joinable()) closer = std::jthread([&] { group.close(); });
                return false;
            };
            group.recv(call);
        });
        REQUIRE(reason_of(thrown[0]));
        CHECK(reason_of(thrown[0])->kind == AbortKind::kClosed);
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
            while (pair == 0) std::this_thread::yield();
            CHECK(pair == Activity::word_of(0, true, 1, 1));
            send(group, 0, 10);
        }
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

TEST_CASE("wrong peers are refused in MLX's words, and the group is as good as before") {
    const auto text = [](Group& group, OpKind kind, int peer) -> std::string {
        Array array(3);
        try {
            kind == OpKind::kSend ? group.send(array.call(kind, peer))
                                  : group.recv(array.call(kind, peer));
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    };
    World world(options({0, 0}));
    CHECK(text(world.group(1), OpKind::kSend, 4) == "Invalid destination=4 for a group of size 2");
    CHECK(text(world.group(1), OpKind::kRecv, -1) == "Invalid source=-1 for a group of size 2");
    CHECK(text(world.group(1), OpKind::kSend, 1) == "rank 1 cannot send to itself");
    CHECK(text(world.group(1), OpKind::kRecv, 1) == "rank 1 cannot receive from itself");
    world.run_well([](Group& group) { group.run(Call{}); });
    World alone(options({0}));
    CHECK(text(alone.group(0), OpKind::kSend, 0) == "Cannot send to a singleton group");
    CHECK(text(alone.group(0), OpKind::kRecv, 0) == "Cannot recv from a singleton group");
}
