// Collectives x formation x wire x size x count x dtype, with limits so small
// that small arrays reach every branch. Values are small integers, so that
// every order of summation is exact.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;

namespace {

// Hosts of the ranks; the sizes 1, 2, 3, 4, 7 in an arena, over links, and
// composed.
const std::vector<std::vector<int>> kHosts{{0},
                                           {0, 0},
                                           {0, 0, 0},
                                           {0, 0, 0, 0},
                                           {0, 0, 0, 0, 0, 0, 0},
                                           {0, 1},
                                           {0, 1, 2},
                                           {0, 1, 2, 3},
                                           {0, 1, 2, 3, 4, 5, 6},
                                           {0, 0, 1},
                                           {0, 1, 1, 0},
                                           {1, 0, 0, 1, 2, 0, 2}};

template <class T>
T value(int rank, std::size_t i) {
    return static_cast<T>((i * 7 + static_cast<std::size_t>(rank) * 3) % 100);
}

template <class T>
void check_all(Group& group, Dtype dtype, std::size_t count) {
    const auto size = static_cast<std::size_t>(group.size());
    const std::uint64_t shape[] = {count};
    std::vector<T> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = value<T>(group.rank(), i);
    std::vector<T> expected(count, T{0});
    std::vector<T> gathered(count * size);
    for (std::size_t r = 0; r < size; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
            expected[i] += value<T>(static_cast<int>(r), i);
            gathered[r * count + i] = value<T>(static_cast<int>(r), i);
        }
    }
    const auto fail = [&](const char* what) {
        throw std::runtime_error(std::string(what) + " is wrong: rank " +
                                 std::to_string(group.rank()) + ", count " + std::to_string(count));
    };
    std::vector<T> out(count);
    group.run(call_of(OpKind::kAllSum, dtype, x, out, shape));
    if (out != expected) fail("all_sum");
    auto both = x;
    group.run(call_of(OpKind::kAllSum, dtype, both, both, shape));
    if (both != expected) fail("all_sum in place");
    std::vector<T> all(count * size);
    group.run(call_of(OpKind::kAllGather, dtype, x, all, shape));
    if (all != gathered) fail("all_gather");
    for (int root = 0; root < group.size(); ++root) {
        auto copy = x;
        group.run(call_of(OpKind::kBroadcast, dtype, copy, copy, shape, root));
        for (std::size_t i = 0; i < count; ++i) {
            if (copy[i] != value<T>(root, i)) fail("broadcast in place");
        }
        std::fill(out.begin(), out.end(), T{0});
        group.run(call_of(OpKind::kBroadcast, dtype, x, out, shape, root));
        if (out != copy) fail("broadcast");
    }
    group.run(Call{});
}

void check_world(const WorldOptions& options) {
    World world(options);
    const auto size = static_cast<std::size_t>(world.size());
    world.run_well([&](Group& group) {
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, size - 1, size, std::size_t{97}, std::size_t{1009}}) {
            check_all<float>(group, Dtype::float32, count);
            check_all<double>(group, Dtype::float64, count);
            check_all<std::int64_t>(group, Dtype::int64, count);
        }
    });
}

}  // namespace

TEST_CASE("every collective, every formation, over sockets") {
    for (const auto& hosts : kHosts) {
        CAPTURE(hosts.size());
        check_world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
    }
}

TEST_CASE("every collective in an arena that is written past the caches") {
    for (Tuning tuning : {tiny_tuning(), Tuning{}}) {
        tuning.host.is_always_far = true;
        check_world({{0, 0, 0}, Wire::kSockets, tuning, 1, nullptr});
        check_world({{0, 1, 0, 1}, Wire::kSockets, tuning, 1, nullptr});
    }
}

TEST_CASE("every collective over loopback tcp") {
    check_world({{0, 1, 2}, Wire::kTcp, tiny_tuning(), 1, nullptr});
    check_world({{0, 1, 1}, Wire::kTcp, Tuning{}, 1, nullptr});
}

TEST_CASE("every collective over links of several sockets") {
    check_world({{0, 1}, Wire::kStriped, tiny_tuning(), 1, nullptr});
    check_world({{0, 1, 2}, Wire::kStriped, tiny_tuning(), 1, nullptr});
    check_world({{0, 1, 1, 2}, Wire::kStriped, Tuning{}, 1, nullptr});
}

TEST_CASE("every collective over memory links that move a few bytes at a time") {
    auto faults = std::make_shared<LinkFaults>();
    faults->most_per_call = 13;  // never a whole element
    check_world({{0, 1}, Wire::kMemory, tiny_tuning(), 1, faults});
    check_world({{0, 1, 1, 2}, Wire::kMemory, tiny_tuning(), 1, faults});
}

TEST_CASE("with the shipped limits as well") {
    for (const auto& hosts : {std::vector<int>{0, 0}, std::vector<int>{0, 0, 1, 1}}) {
        World world({hosts, Wire::kSockets, Tuning{}, 1, nullptr});
        world.run_well([&](Group& group) {
            for (const std::size_t count : {4096UL, 5000UL, 60'000UL}) {
                check_all<float>(group, Dtype::float32, count);
            }
        });
    }
}

TEST_CASE("the same bits on all ranks and in every run") {
    for (const auto& hosts : kHosts) {
        std::set<std::string> seen;
        std::mutex mutex;
        for (int run = 0; run < 3; ++run) {
            World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
            world.run_well([&](Group& group) {
                constexpr std::size_t kCount = 777;
                const std::uint64_t shape[] = {kCount};
                std::vector<float> x(kCount);
                for (std::size_t i = 0; i < kCount; ++i) {
                    x[i] = std::sin(static_cast<float>(i)) *
                           std::pow(10.F, static_cast<float>(group.rank() % 5));
                }
                std::vector<float> out(kCount);
                group.run(call_of(OpKind::kAllSum, Dtype::float32, x, out, shape));
                const std::lock_guard lock(mutex);
                seen.emplace(reinterpret_cast<const char*>(out.data()), kCount * sizeof(float));
            });
        }
        CHECK(seen.size() == 1);
    }
}

TEST_CASE("a new epoch on the same regions, many times") {
    World world({{0, 0, 1}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    for (std::uint64_t epoch = 2; epoch < 12; ++epoch) {
        world.run_well([](Group& group) { check_all<float>(group, Dtype::float32, 97); });
        world.group(0).abort({AbortKind::kError, -1, "next"});
        world.renew(epoch);
    }
}

TEST_CASE("threads of one rank take turns") {
    World world({{0, 0}, Wire::kSockets, tiny_tuning(), 1, nullptr});
    world.run_well([](Group& group) {
        const auto work = [&group] {
            for (int i = 0; i < 200; ++i) group.run(Call{});
        };
        const std::jthread a(work);
        const std::jthread b(work);
        const std::jthread c(work);
    });
    CHECK(world.group(0).operations() == 600);
}
