// The flight recorder: its ring under many threads, and what a group writes into it.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "os/descriptors.hpp"
#include "shm/trace_ring.hpp"
#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;

namespace {

// All words of a record tell of one number: a torn one is seen.
TraceRing::Words words_of(std::uint64_t number) {
    TraceRing::Words words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = number * 1000 + i;
    return words;
}
bool is_whole(const TraceRing::Words& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i] != words[0] + i) return false;
    }
    return true;
}

std::vector<TraceRing::Snapshot> records_of(Group& group) {
    std::uint64_t dropped = 0;
    return group.trace().read(dropped);
}
OpKind kind_of(const TraceRing::Snapshot& seen) {
    return static_cast<OpKind>(seen.words[kRecordWhat] & 0xFF);
}
int failure_of(const TraceRing::Snapshot& seen) {
    return static_cast<int>(seen.words[kRecordWhat] >> kRecordFailure & 0xFF);
}

WorldOptions on(std::vector<int> hosts) {
    WorldOptions options;
    options.hosts = std::move(hosts);
    return options;
}

void sum(Group& group, std::size_t count = 4) {
    const std::vector<float> x(count, 1.0F);
    std::vector<float> out(count);
    const std::uint64_t shape[] = {count};
    group.run(call_of(OpKind::kAllSum, Dtype::float32, x, out, shape));
}

}  // namespace

TEST_CASE("a ring keeps the newest, in order, and counts what it dropped") {
    const auto ring = std::make_unique<TraceRing>();
    std::uint64_t dropped = 1;
    CHECK(ring->read(dropped).empty());
    CHECK(dropped == 0);
    constexpr std::uint64_t kMore = 100;
    for (std::uint64_t i = 0; i < TraceRing::kRecords + kMore; ++i)
        ring->open(words_of(i))->close();
    const auto seen = ring->read(dropped);
    CHECK(seen.size() == TraceRing::kRecords);
    CHECK(dropped == kMore);
    for (std::size_t i = 0; i < seen.size(); ++i) {
        CHECK(seen[i].number == kMore + i);
        CHECK(seen[i].words == words_of(kMore + i));
    }
    ring->begin();  // another process
    CHECK(ring->read(dropped).empty());
    CHECK(dropped == 0);
    ring->open(words_of(7))->close();
    CHECK(ring->read(dropped).front().number == 0);
}

TEST_CASE("what is open is never overwritten, but by another process") {
    const auto ring = std::make_unique<TraceRing>();
    TraceRing::Record* const hanging = ring->open(words_of(0));
    for (std::uint64_t i = 1; i <= 2 * TraceRing::kRecords; ++i) ring->open(words_of(i))->close();
    std::uint64_t dropped = 0;
    auto seen = ring->read(dropped);
    CHECK(seen.front().is_open);
    CHECK(seen.front().words == words_of(0));
    CHECK(seen.size() == TraceRing::kRecords);
    CHECK(seen.back().words == words_of(2 * TraceRing::kRecords));
    CHECK(dropped == 2 * TraceRing::kRecords + 1 - seen.size());
    hanging->close();
    CHECK_FALSE(ring->read(dropped).front().is_open);

    std::vector<TraceRing::Record*> all(TraceRing::kRecords);
    for (auto& record : all) record = ring->open(words_of(1));
    CHECK(std::count(all.begin(), all.end(), nullptr) == 0);
    CHECK(ring->open(words_of(2)) == nullptr);  // and nobody waits
    ring->begin();
    CHECK(ring->open(words_of(3)) != nullptr);
    seen = ring->read(dropped);
    CHECK(seen.size() == 1);
    CHECK(seen.front().words == words_of(3));
}

TEST_CASE("who looks again reads what is new, and what was open") {
    const auto ring = std::make_unique<TraceRing>();
    const auto numbers = [&](std::uint64_t from) {
        std::vector<std::uint64_t> found;
        for (const auto& seen : ring->read_from(from)) {
            CHECK(seen.words == words_of(seen.number));
            found.push_back(seen.number);
        }
        return found;
    };
    CHECK(numbers(0).empty());
    CHECK(numbers(9).empty());
    for (std::uint64_t i = 0; i < 5; ++i) ring->open(words_of(i))->close();
    CHECK(numbers(3) == std::vector<std::uint64_t>{3, 4});
    CHECK(numbers(5).empty());
    TraceRing::Record* const hanging = ring->open(words_of(5));
    for (std::uint64_t i = 6; i < TraceRing::kRecords + 9; ++i) {
        // The ticket that met the open record became none.
        ring->open(words_of(i < TraceRing::kRecords + 5 ? i : i + 1))->close();
    }
    auto found = numbers(5);
    CHECK(found.size() == TraceRing::kRecords);
    CHECK(found.front() == 5);
    CHECK(ring->read_from(5).front().is_open);
    CHECK(numbers(TraceRing::kRecords + 8) ==
          std::vector<std::uint64_t>{TraceRing::kRecords + 8, TraceRing::kRecords + 9});
    hanging->close();
    ring->begin();  // another process, which has not done as much yet
    ring->open(words_of(0))->close();
    CHECK(numbers(TraceRing::kRecords) == std::vector<std::uint64_t>{0});
}

TEST_CASE("readers never believe a torn record") {
    const auto ring = std::make_unique<TraceRing>();
    std::atomic<bool> is_over{false};
    std::atomic<std::uint64_t> torn{0};
    std::atomic<std::uint64_t> disordered{0};
    std::vector<std::thread> threads;
    for (std::uint64_t writer = 0; writer < 2; ++writer) {
        threads.emplace_back([&, writer] {
            // The same words but for the number: some thousand rounds of the ring.
            for (std::uint64_t i = 0; i < 3 * TraceRing::kRecords; ++i) {
                // None where the other writer had the claim for too long: it has lost its core.
                if (auto* const record = ring->open(words_of(2 * i + writer))) record->close();
            }
        });
    }
    threads.emplace_back([&] {
        while (!is_over.load()) {
            std::uint64_t dropped = 0;
            const auto seen = ring->read(dropped);
            for (std::size_t i = 0; i < seen.size(); ++i) {
                if (!is_whole(seen[i].words)) ++torn;
                if (i > 0 && seen[i].number <= seen[i - 1].number) ++disordered;
            }
        }
    });
    threads[0].join();
    threads[1].join();
    is_over = true;
    threads[2].join();
    CHECK(torn == 0);
    CHECK(disordered == 0);
    std::uint64_t dropped = 0;
    const auto seen = ring->read(dropped);
    CHECK(seen.size() + dropped == 6 * TraceRing::kRecords);
}

TEST_CASE("times in a ring never go back, in a record or from one of a thread to its next") {
    const auto ring = std::make_unique<TraceRing>();
    constexpr int kThreads = 2;
    constexpr std::uint64_t kEach = 20 * TraceRing::kRecords;
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&ring, &ready, thread] {
            Op op{};
            ++ready;
            while (ready.load() < kThreads) std::this_thread::yield();  // all at once
            for (op.seq = 1; op.seq <= kEach; ++op.seq) {
                Recording recording(*ring, op, 0, 1, thread);
                if (op.seq % 2 == 0) recording.arrive();
                if (op.seq % 2 == 1) recording.arrive_with_end();
                recording.finish();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    std::uint64_t dropped = 0;
    const auto seen = ring->read(dropped);
    CHECK(seen.size() == TraceRing::kRecords);
    CHECK(seen.size() + dropped == kThreads * kEach);
    std::uint64_t last[kThreads] = {};
    int backward = 0;
    for (const auto& record : seen) {
        const auto& words = record.words;
        std::uint64_t& before = last[words[kRecordWhat] >> 40];
        if (words[kRecordEntered] < before) ++backward;
        if (words[kRecordArrived] < words[kRecordEntered]) ++backward;
        if (words[kRecordEnded] < words[kRecordArrived]) ++backward;
        before = words[kRecordEnded];
    }
    CHECK(backward == 0);
}

TEST_CASE("a group writes what it does, where the supervisor reads it") {
    for (const auto& hosts : {std::vector<int>{0, 0}, {0, 1}, {0, 0, 1}}) {
        World world(on(hosts));
        world.run_well([](Group& group) {
            sum(group);
            sum(group, 100'000);
        });
        std::uint64_t last_entered[2] = {};
        for (int rank = 0; rank < world.size(); ++rank) {
            const auto seen = records_of(world.group(rank));
            REQUIRE(seen.size() == 2);
            for (std::size_t i = 0; i < 2; ++i) {
                const auto& words = seen[i].words;
                CHECK_FALSE(seen[i].is_open);
                CHECK(kind_of(seen[i]) == OpKind::kAllSum);
                CHECK(failure_of(seen[i]) == 0);
                CHECK(words[kRecordPlace] == record_place(1, i + 1));
                CHECK(words[kRecordBytes] == (i == 0 ? 16 : 400'000));
                CHECK(words[kRecordEntered] <= words[kRecordArrived]);
                CHECK(words[kRecordArrived] <= words[kRecordEnded]);
                last_entered[i] = std::max(last_entered[i], words[kRecordEntered]);
            }
            std::uint64_t dropped = 0;
            CHECK(world.page_of(rank).trace(world.page_of(rank).author()).read(dropped).size() ==
                  2);
            const TrafficCounters& totals =
                world.page_of(rank).totals(world.page_of(rank).author());
            CHECK(totals.channels[0].operations == 2);
        }
        for (int rank = 0; rank < world.size(); ++rank) {
            const auto seen = records_of(world.group(rank));
            for (std::size_t i = 0; i < 2; ++i) {
                CHECK(seen[i].words[kRecordArrived] >= last_entered[i]);
            }
        }
    }
}

TEST_CASE("an operation that failed says with what") {
    World mismatch(on({0, 0}));
    mismatch.run([](Group& group) { sum(group, group.rank() == 0 ? 3 : 4); });
    for (int rank = 0; rank < 2; ++rank) {
        const auto seen = records_of(mismatch.group(rank));
        REQUIRE(seen.size() == 1);
        CHECK_FALSE(seen[0].is_open);
        CHECK(failure_of(seen[0]) == static_cast<int>(AbortKind::kMismatch));
    }

    World timeout(on({0, 1}));
    timeout.run([](Group& group) {
        if (group.rank() != 0) return;
        group.set_timeout(std::chrono::milliseconds(20));
        sum(group);
    });
    auto seen = records_of(timeout.group(0));
    REQUIRE(seen.size() == 1);
    CHECK(failure_of(seen[0]) == static_cast<int>(AbortKind::kTimeout));
    CHECK(seen[0].words[kRecordArrived] == 0);
    CHECK(seen[0].words[kRecordEnded] - seen[0].words[kRecordEntered] >= 20'000'000);
    CHECK(records_of(timeout.group(1)).empty());

    World aborted(on({0, 0}));
    std::thread killer([&] {
        const auto& ring = aborted.group(0).trace();
        std::uint64_t dropped = 0;
        CHECK(wait_until([&] {
            const auto found = ring.read(dropped);
            return !found.empty() && found[0].is_open;
        }));
        aborted.page_of(0).abort(1, {AbortKind::kRankFailure, 1, "rank 1 was killed"});
    });
    aborted.run([](Group& group) {
        if (group.rank() == 0) sum(group);
    });
    killer.join();
    seen = records_of(aborted.group(0));
    REQUIRE(seen.size() == 1);
    CHECK(failure_of(seen[0]) == static_cast<int>(AbortKind::kRankFailure));
}

TEST_CASE("bytes on wires are counted by peer, and ended with the process that begins anew") {
    World world(on({0, 1, 2}));
    world.run_well([](Group& group) { sum(group, 1000); });
    for (int rank = 0; rank < 3; ++rank) {
        ControlPage& page = world.page_of(rank);
        for (int peer = 0; peer < 3; ++peer) {
            const auto* sent = page.wire(page.author(), peer, false);
            if (sent == nullptr) continue;  // this page knows its own ranks only
            CHECK((*sent >= 4000) == (peer != rank));
        }
    }
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 2, 3);
    std::uint64_t dropped = 0;
    {
        const ControlPage page(memory.get(), 2, 1, {});
        page.trace(1).open(words_of(1));
        *page.wire(1, 2, true) = 5;
        CHECK(page.trace(1).read(dropped).size() == 1);
        CHECK(page.trace(0).read(dropped).empty());
        CHECK(page.wire(1, 3, true) == nullptr);
    }
    const ControlPage supervisor(memory.get(), 2, 2, {});
    CHECK(supervisor.trace(1).read(dropped).size() == 1);  // of a process that is gone
    const ControlPage next(memory.get(), 2, 1, {});
    CHECK(supervisor.trace(1).read(dropped).empty());
    CHECK(*supervisor.wire(1, 2, true) == 5);
}
