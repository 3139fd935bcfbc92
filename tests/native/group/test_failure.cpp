// What goes wrong, goes wrong on every rank, in bounded time, with the same
// words.
#include <doctest/doctest.h>

#include <cmath>
#include <latch>
#include <thread>

#include "collectives/kernels/reduce.hpp"
#include "support/reference.hpp"
#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::vector<int>> kHosts{{0, 0},    {0, 0, 0, 0}, {0, 1},
                                           {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 2}};

// Every rank failed with this kind and with one text; later operations fail
// alike.
std::string check_same(World& world, const std::vector<std::exception_ptr>& thrown,
                       AbortKind kind) {
    std::string text;
    for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
        const auto reason = reason_of(thrown[rank]);
        REQUIRE(reason);
        CHECK_MESSAGE(reason->kind == kind, reason->message);
        if (rank == 0) text = reason->message;
        CHECK(reason->message == text);
    }
    const auto again = world.run([](Group& group) { group.run(Call{}); });
    for (const auto& one : again) {
        const auto reason = reason_of(one);
        REQUIRE(reason);
        CHECK(reason->kind == kind);
        CHECK(reason->message == text);
    }
    return text;
}

// Interrupts rank 0 once the link is frozen.
void run_until_frozen(Group& group, Call& call, const std::shared_ptr<LinkFaults>& faults) {
    if (group.rank() == 1) return group.run(call);
    call.interrupt = when_frozen(faults);
    CHECK_THROWS_AS(group.run(call), Interrupted);
}

}  // namespace

TEST_CASE(
    "a mismatch of operation, dtype, count, shape or root is the same "
    "error everywhere") {
    for (const auto& hosts : kHosts) {
        const int odd = static_cast<int>(hosts.size()) - 1;
        for (int kind = 0; kind < 6; ++kind) {
            CAPTURE(kind);
            CAPTURE(hosts.size());
            const Wire wire = kind % 2 == 0 ? Wire::kSockets : Wire::kStriped;
            World world({hosts, wire, tiny_tuning(), 1, nullptr});
            const auto thrown = world.run([&](Group& group) {
                const bool is_odd = group.rank() == odd;
                FloatArrays array(is_odd && kind == 1 ? 500 : 400);
                std::vector<float> wide(400 * hosts.size());
                Call call = array.call(is_odd && kind == 5 ? OpKind::kBroadcast : OpKind::kAllSum);
                const std::uint64_t square[] = {20, 20};
                if (is_odd && kind == 0) call = Call{};
                if (is_odd && kind == 2) call.shape = square;
                if (is_odd && kind == 3) call.dtype = Dtype::int64, call.count = 200;
                if (kind == 4) call = array.call(OpKind::kBroadcast, is_odd ? 1 : 0);
                group.run(call);
            });
            const auto text = check_same(world, thrown, AbortKind::kMismatch);
            CHECK(text.find("rank " + std::to_string(odd) + ": ") == 0);
            // Compared with the lowest rank that its judges know: of its host, or of
            // all leaders.
            CHECK((text.find(" met rank 0: ") != std::string::npos ||
                   text.find(" met rank 2: ") != std::string::npos));
        }
    }
}

TEST_CASE("the words of a mismatch") {
    World world({{0, 0}, Wire::kSockets, Tuning{}, 1, nullptr});
    world.run_well([](Group& group) { group.run(Call{}); });
    const auto thrown = world.run([](Group& group) {
        FloatArrays array(group.rank() == 0 ? 4096 : 8);
        group.run(array.call(group.rank() == 0 ? OpKind::kAllSum : OpKind::kBroadcast, 1));
    });
    CHECK(check_same(world, thrown, AbortKind::kMismatch) ==
          "rank 1: broadcast #2 (float32, shape (8,), root 1) met rank 0: "
          "all_sum #2 (float32, "
          "shape (4096,))");
}

TEST_CASE("a rank that does not come is named when the deadline passes") {
    for (const auto& hosts : kHosts) {
        CAPTURE(hosts.size());
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const int absent = world.size() - 1;
        std::latch done(world.size() - 1);
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == absent) {
                done.wait();
                FloatArrays late(1000);
                return group.run(late.call(OpKind::kAllSum));
            }
            const CountDownAtExit leaving{done};
            FloatArrays array(1000);
            Call call = array.call(OpKind::kAllSum);
            call.timeout = 60ms;
            group.run(call);
        });
        for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
            const auto reason = reason_of(thrown[rank]);
            REQUIRE(reason);
            CHECK_MESSAGE(reason->kind == AbortKind::kTimeout, reason->message);
            CHECK_MESSAGE(
                reason->message.find("timed out after 0.06 s; missing: ") != std::string::npos,
                reason->message);
        }
    }
}

TEST_CASE("an abort from outside frees every waiting rank, whatever it waits on" *
          doctest::test_suite("promise")) {
    for (const auto& hosts : kHosts) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const int absent = world.size() - 1;
        const auto begin = Clock::now();
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == absent) {
                // As supervisors do: each page gets the failure.
                for (int rank = 0; rank < world.size(); ++rank) {
                    world.page_of(rank).abort(
                        1, {AbortKind::kRankFailure, absent, "killed by signal 9"});
                }
            }
            FloatArrays array(1000);
            group.run(array.call(OpKind::kAllSum));
        });
        CHECK(Clock::now() - begin < bound_of(2s));
        CHECK(check_same(world, thrown, AbortKind::kRankFailure) == "killed by signal 9");
        CHECK(reason_of(thrown[0])->culprit == absent);
    }
}

TEST_CASE("an abort in one process travels over the links") {
    World world({{0, 1, 2}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    const auto thrown = world.run([&](Group& group) {
        if (group.rank() == 2) group.abort({AbortKind::kError, 2, "enough"});
        group.run(Call{});
    });
    CHECK(check_same(world, thrown, AbortKind::kError) == "enough");
}

TEST_CASE(
    "a link that breaks without words is named as that, and accuses its "
    "other end") {
    auto faults = std::make_shared<LinkFaults>();
    World world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    world.run_well([](Group& group) { group.run(Call{}); });
    faults->is_broken = true;
    const auto thrown = world.run([](Group& group) { group.run(Call{}); });
    for (int rank = 0; rank < 2; ++rank) {
        const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
        REQUIRE(reason);
        CHECK(reason->kind == AbortKind::kLinkBroken);
        CHECK(world.group(rank).culprit_seen_by(*reason) == 1 - rank);
        CHECK(reason->message ==
              "the link between rank 0 and rank 1 broke (the other end closed it) "
              "during barrier #2");
    }
}

TEST_CASE("a rank that closes is named by those who still expect it, and only then") {
    for (const auto& hosts : kHosts) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const int leaver = world.size() - 1;
        const auto thrown = world.run([&](Group& group) {
            for (int i = 0; i < 3; ++i) group.run(Call{});
            if (group.rank() == leaver) return group.close();
            group.run(Call{});
        });
        for (int rank = 0; rank < leaver; ++rank) {
            const auto reason = reason_of(thrown[static_cast<std::size_t>(rank)]);
            REQUIRE(reason);
            CHECK_MESSAGE(reason->kind == AbortKind::kClosed, reason->message);
            CHECK(reason->message.find("rank " + std::to_string(leaver) + " closed the group") ==
                  0);
        }
        CHECK_FALSE(thrown[static_cast<std::size_t>(leaver)]);
        CHECK_THROWS_AS(world.group(leaver).run(Call{}), Closed);
        world.group(leaver).close();
    }
}

TEST_CASE("an interrupt leaves at once and frees the others") {
    for (const auto& hosts : kHosts) {
        // Rank 1 does not come. Where it leads a host, only a supervisor could tell
        // its members.
        if (hosts == std::vector<int>{0, 1, 1, 2}) continue;
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        const auto thrown = world.run([&](Group& group) {
            if (group.rank() == 1) return;
            Call call;
            if (group.rank() == 0) call.interrupt = [] { return true; };
            group.run(call);
        });
        CHECK_THROWS_AS(std::rethrow_exception(thrown[0]), Interrupted);
        CHECK(world.group(0).failure()->message == "rank 0 was interrupted in barrier #1");
        for (std::size_t rank = 2; rank < thrown.size(); ++rank) {
            REQUIRE(reason_of(thrown[rank]));
            CHECK(reason_of(thrown[rank])->kind == AbortKind::kInterrupted);
        }
    }
}

TEST_CASE("a close from another thread frees a waiting operation of this rank") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    std::jthread closer;
    const auto thrown = world.run([&](Group& group) {
        if (group.rank() == 1) return;
        Call call;
        call.interrupt = [&] {  // the first look, after 50 ms: it waits for sure
            if (!closer.joinable()) closer = std::jthread([&] { group.close(); });
            return false;
        };
        group.run(call);
    });
    REQUIRE(reason_of(thrown[0]));
    CHECK(reason_of(thrown[0])->kind == AbortKind::kClosed);
}

TEST_CASE("an output that was begun is invalidated") {
    // The link freezes in the middle of the ring: headers have been met, the data
    // has not all come.
    auto faults = std::make_shared<LinkFaults>();
    faults->bytes_left = 4000;
    World world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    std::vector<FloatArrays> arrays(2, FloatArrays(20'000));
    const auto thrown = world.run([&](Group& group) {
        Call call = arrays[static_cast<std::size_t>(group.rank())].call(OpKind::kAllSum);
        run_until_frozen(group, call, faults);
    });
    // The frozen link takes no abort notice: rank 1 sees only that it ended.
    const auto reason = reason_of(thrown[1]);
    REQUIRE(reason);
    CHECK(reason->kind == AbortKind::kLinkBroken);
    CHECK(reason->message.find("; its output was invalidated") != std::string::npos);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        CHECK(std::isnan(arrays[rank].out.front()));
        CHECK(std::isnan(arrays[rank].out.back()));
        CHECK(arrays[rank].x.back() == 1.F);
    }
}

TEST_CASE("an array that is its own output is invalidated, too, and does not look like a result") {
    constexpr std::size_t kBytes = 80'000;
    for (const Dtype dtype : {Dtype::boolean, Dtype::uint8, Dtype::uint64, Dtype::int16}) {
        auto faults = std::make_shared<LinkFaults>();
        faults->bytes_left = 4000;
        World world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
        std::vector<Bytes> arrays(2, Bytes(kBytes, std::byte{1}));
        world.run([&](Group& group) {
            Bytes& x = arrays[static_cast<std::size_t>(group.rank())];
            const std::uint64_t shape[] = {kBytes / size_of(dtype)};
            Call call = call_of(OpKind::kAllSum, dtype, x, x, shape);
            call.count = shape[0];
            run_until_frozen(group, call, faults);
        });
        Bytes invalid(kBytes);
        invalidate(dtype, invalid.data(), kBytes / size_of(dtype));
        CHECK(invalid != Bytes(kBytes));
        for (const Bytes& array : arrays) CHECK(array == invalid);
    }
}

TEST_CASE("usage errors leave the group as it was") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    Call call;
    call.root = 2;
    CHECK_THROWS_AS(world.group(0).run(call), UsageError);
    world.run_well([](Group& group) { group.run(Call{}); });
    GroupOptions options;
    options.size = 2;
    options.hosts = {0, 1};
    CHECK_THROWS_AS(Group(std::move(options)), UsageError);  // no link, no arena
}
