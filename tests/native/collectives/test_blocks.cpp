// The reductions and the collectives of blocks x formation x dtype x size, with limits so small
// that small arrays reach every branch. Sums are of small integers, exact in every order.
#include <doctest/doctest.h>

#include <mutex>
#include <set>
#include <thread>

#include "support/reference.hpp"
#include "support/world.hpp"

using namespace phalanx;
using namespace phalanx::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::vector<int>> kHosts{
    {0},          {0, 0},       {0, 0, 0, 0},          {0, 0, 0, 0, 0, 0, 0},
    {0, 1},       {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5, 6}, {0, 0, 1, 1},
    {0, 1, 0, 1}, {0, 1, 1},    {1, 0, 0, 1, 2, 0, 2}};

// What rank `rank` has at place i: small whole numbers, different on every rank.
Bytes input_of(Dtype dtype, int rank, std::size_t count) {
    Bytes bytes(count * size_of(dtype));
    with_type(dtype, [&](auto type) {
        auto values = as<decltype(type)>(bytes);
        for (std::size_t i = 0; i < count; ++i) {
            encode(static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 5) % 11),
                   values[i]);
        }
    });
    return bytes;
}

Bytes reduced(Reduction how, Dtype dtype, int size, std::size_t count) {
    Bytes result(count * size_of(dtype));
    with_type(dtype, [&](auto type) {
        using T = decltype(type);
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(dtype, rank, count));
        for (std::size_t i = 0; i < count; ++i) {
            std::vector<T> column;
            for (auto& one : inputs) column.push_back(as<T>(one)[i]);
            as<T>(result)[i] = naive(how, column);
        }
    });
    return result;
}

Bytes part(const Bytes& bytes, std::size_t nbytes, std::size_t index) {
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(index * nbytes);
    return {at, at + static_cast<std::ptrdiff_t>(nbytes)};
}

void run(Group& group, OpKind kind, Dtype dtype, const Bytes& x, Bytes& out) {
    const std::uint64_t shape[] = {x.size() / size_of(dtype)};
    Call call = call_of(kind, dtype, x, out, shape);
    call.count = shape[0];
    group.run(call);
}

void check_all(Group& group, Dtype dtype, std::size_t count) {
    const int size = group.size();
    const auto ranks = static_cast<std::size_t>(size);
    const auto me = static_cast<std::size_t>(group.rank());
    const auto expect = [&](const Bytes& got, const Bytes& wanted, const char* what) {
        if (got != wanted) {
            throw std::runtime_error(std::string(what) + " of " + std::string(name_of(dtype)) +
                                     " is wrong: rank " + std::to_string(group.rank()) + " of " +
                                     std::to_string(size) + ", count " + std::to_string(count));
        }
    };
    const Bytes x = input_of(dtype, group.rank(), count);
    for (const auto& [kind, how] :
         {std::pair(OpKind::kAllSum, Reduction::kSum), std::pair(OpKind::kAllMax, Reduction::kMax),
          std::pair(OpKind::kAllMin, Reduction::kMin)}) {
        const Bytes wanted = reduced(how, dtype, size, count);
        Bytes out(x.size());
        run(group, kind, dtype, x, out);
        expect(out, wanted, name_of(kind).c_str());
        Bytes both = x;
        run(group, kind, dtype, both, both);
        expect(both, wanted, (name_of(kind) + " in place").c_str());
    }
    const Bytes blocks = input_of(dtype, group.rank(), count * ranks);
    const std::size_t nbytes = x.size();
    Bytes sums(nbytes);
    run(group, OpKind::kSumScatter, dtype, blocks, sums);
    expect(sums, part(reduced(Reduction::kSum, dtype, size, count * ranks), nbytes, me),
           "sum_scatter");
    Bytes all(blocks.size());
    run(group, OpKind::kAllToAll, dtype, blocks, all);
    for (std::size_t r = 0; r < ranks; ++r) {
        const Bytes theirs = input_of(dtype, static_cast<int>(r), count * ranks);
        expect(part(all, nbytes, r), part(theirs, nbytes, me), "all_to_all");
    }
    expect(blocks, input_of(dtype, group.rank(), count * ranks), "the input afterwards");
}

void check_world(const WorldOptions& options, bool is_short = false) {
    World world(options);
    const auto size = static_cast<std::size_t>(world.size());
    world.run_well([&](Group& group) {
        for (const Dtype dtype : all_dtypes()) {
            for (const std::size_t count :
                 {std::size_t{0}, std::size_t{1}, size - 1, size, std::size_t{37}}) {
                if (count <= 1 || !is_short || count == 37) check_all(group, dtype, count);
            }
        }
        for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::complex128}) {
            check_all(group, dtype, 257);
        }
    });
}

}  // namespace

TEST_CASE("reductions and blocks, every formation and dtype, over sockets") {
    for (const auto& hosts : kHosts) {
        CAPTURE(hosts.size());
        check_world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr}, hosts.size() > 4);
    }
}

TEST_CASE("reductions and blocks with the shipped limits, and beyond a chunk") {
    for (const auto& hosts : {std::vector<int>{0, 0}, {0, 1}, {0, 1, 0, 1}, {0, 0, 1}}) {
        World world({hosts, Wire::kTcp, Tuning{}, 1, nullptr});
        world.run_well([&](Group& group) {
            for (const std::size_t count : {1UL, 1500UL, 20'011UL}) {
                check_all(group, Dtype::float32, count);
                check_all(group, Dtype::float16, count);
            }
        });
    }
}

TEST_CASE("reductions and blocks over links that move a few bytes at a time") {
    auto faults = std::make_shared<LinkFaults>();
    faults->most_per_call = 13;  // never a whole element
    check_world({{0, 1, 2}, Wire::kMemory, tiny_tuning(), 1, faults}, true);
    check_world({{0, 1, 1, 0}, Wire::kMemory, tiny_tuning(), 1, faults}, true);
}

TEST_CASE("blocks larger than what the links hold do not deadlock") {
    World world({{0, 1, 2, 3}, Wire::kMemory, Tuning{}, 1, nullptr});  // 4 KiB a link
    world.run_well([](Group& group) { check_all(group, Dtype::float64, 40'009); });
}

TEST_CASE("halves are rounded once on every path") {
    for (const auto& hosts : kHosts) {
        if (hosts.size() != 4) continue;
        for (const std::size_t count : {1UL, 300UL}) {  // inline or mesh; staged or ring
            World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
            world.run_well([&](Group& group) {
                // 2048 on one rank, 1 on the others: 2051, which is 2052 in halves. Rounded after
                // each step it would stay 2048.
                Bytes x(4 * count * 2);
                for (Half& h : as<Half>(x)) encode(group.rank() == 1 ? 2048.0 : 1.0, h);
                Bytes all(x.size());
                Bytes own(2 * count);
                run(group, OpKind::kAllSum, Dtype::float16, x, all);
                run(group, OpKind::kSumScatter, Dtype::float16, x, own);
                for (Bytes* out : {&all, &own}) {
                    for (const Half h : as<Half>(*out)) {
                        if (decode(h) != 2052.0) throw std::runtime_error("rounded too early");
                    }
                }
            });
        }
    }
}

TEST_CASE("the same bits on all ranks and in every run, whatever the reduction") {
    for (const auto& hosts : kHosts) {
        for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::complex64}) {
            std::set<std::string> sums, parts;
            std::mutex mutex;
            for (int times = 0; times < 3; ++times) {
                World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
                std::vector<std::string> found(hosts.size());
                world.run_well([&](Group& group) {
                    Bytes x(210 * size_of(dtype));  // 210 = 2 * 3 * 5 * 7
                    with_type(dtype, [&](auto type) {
                        int i = 0;
                        for (auto& value : as<decltype(type)>(x)) {
                            encode(std::sin(i++) * std::pow(10.0, group.rank() % 5), value);
                        }
                    });
                    x.resize(x.size() / hosts.size() / size_of(dtype) * hosts.size() *
                             size_of(dtype));
                    Bytes out(x.size());
                    Bytes own(x.size() / hosts.size());
                    run(group, OpKind::kAllSum, dtype, x, out);
                    run(group, OpKind::kSumScatter, dtype, x, own);
                    const std::lock_guard lock(mutex);
                    sums.emplace(reinterpret_cast<const char*>(out.data()), out.size());
                    found[static_cast<std::size_t>(group.rank())].assign(
                        reinterpret_cast<const char*>(own.data()), own.size());
                });
                std::string together;
                for (const auto& one : found) together += one;
                parts.insert(together);
            }
            CHECK(sums.size() == 1);
            CHECK(parts.size() == 1);
        }
    }
}

TEST_CASE("what is indivisible is refused before anything is sent, and the group stays good") {
    for (const auto& hosts : {std::vector<int>{0, 0}, {0, 1}, {0, 0, 1}}) {
        World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
        world.run_well([](Group& group) {
            const auto size = static_cast<std::size_t>(group.size());
            for (const OpKind kind : {OpKind::kSumScatter, OpKind::kAllToAll}) {
                const Bytes x((size + 1) * 4);
                Bytes out(x.size());
                bool is_refused = false;
                try {
                    run(group, kind, Dtype::float32, x, out);
                } catch (const UsageError& error) {
                    is_refused = std::string(error.what()).find(name_of(kind)) == 0;
                }
                if (!is_refused) throw std::runtime_error("not refused");
            }
            check_all(group, Dtype::int32, 5);
        });
    }
}

TEST_CASE("a mismatch of the new operations is the same error everywhere") {
    const OpKind kinds[] = {OpKind::kAllSum, OpKind::kAllMax, OpKind::kAllMin, OpKind::kSumScatter,
                            OpKind::kAllToAll};
    for (const auto& hosts : {std::vector<int>{0, 0}, {0, 1}, {0, 1, 0, 1}}) {
        for (const OpKind kind : kinds) {
            const OpKind other = kind == kinds[4] ? kinds[0] : kinds[4];
            World world({hosts, Wire::kSockets, tiny_tuning(), 1, nullptr});
            const auto thrown = world.run([&](Group& group) {
                const Bytes x(64);
                Bytes out(64);
                run(group, group.rank() == 1 ? other : kind, Dtype::float32, x, out);
            });
            std::set<std::string> texts;
            for (const auto& one : thrown) {
                const auto reason = reason_of(one);
                REQUIRE(reason);
                CHECK(reason->kind == AbortKind::kMismatch);
                texts.insert(reason->message);
            }
            CHECK(texts.size() == 1);
            CHECK(texts.begin()->find(name_of(kind) + " #1") != std::string::npos);
            CHECK(texts.begin()->find(name_of(other) + " #1") != std::string::npos);
        }
    }
}

TEST_CASE("a failed operation of blocks invalidates its output, and no byte beyond") {
    for (const OpKind kind : {OpKind::kSumScatter, OpKind::kAllToAll}) {
        auto faults = std::make_shared<LinkFaults>();
        World world({{0, 1}, Wire::kMemory, Tuning{}, 1, faults});
        constexpr std::size_t kBytes = std::size_t{1} << 20;
        const std::size_t needed = kind == OpKind::kSumScatter ? kBytes / 2 : kBytes;
        std::vector<Bytes> outs(2, Bytes(kBytes + 64, std::byte{7}));
        faults->bytes_left = kBytes / 4;  // of data: the headers meet
        const auto thrown = world.run([&](Group& group) {
            const std::uint64_t shape[] = {kBytes / 4};
            const Bytes x(kBytes);
            Call call = call_of(kind, Dtype::float32, x,
                                outs[static_cast<std::size_t>(group.rank())], shape);
            call.count = shape[0];
            if (group.rank() == 1) return group.run(call);
            call.interrupt = when_frozen(faults);
            CHECK_THROWS_AS(group.run(call), Interrupted);
        });
        // The frozen link takes no abort notice: rank 1 sees only that it ended.
        REQUIRE(reason_of(thrown[1]));
        CHECK(reason_of(thrown[1])->kind == AbortKind::kLinkBroken);
        for (std::size_t rank = 0; rank < 2; ++rank) {
            const auto values = as<float>(outs[rank]);
            CHECK(std::isnan(values[0]));
            CHECK(std::isnan(values[needed / 4 - 1]));
            CHECK(outs[rank][needed] == std::byte{7});
        }
    }
}
