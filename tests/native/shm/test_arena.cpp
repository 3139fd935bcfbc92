// The arena contract, in one process and between processes.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "os/descriptors.hpp"
#include "shm/arena.hpp"
#include "support/world.hpp"

using namespace phalanx;
using phalanx::test::kSmallRegion;

namespace {

void check_contract(std::span<const std::unique_ptr<Arena>> arenas) {
    const int slots = static_cast<int>(arenas.size());
    for (int writer = 0; writer < slots; ++writer) {
        for (const int channel : {0, 7, Arena::kChannels - 1}) {
            const auto own = arenas[static_cast<std::size_t>(writer)]->own_channel(channel);
            CHECK(reinterpret_cast<std::uintptr_t>(own.data()) % 4096 == 0);
            std::memset(own.data(), writer * 32 + channel + 1, own.size());
        }
    }
    for (int reader = 0; reader < slots; ++reader) {
        for (int writer = 0; writer < slots; ++writer) {
            for (const int channel : {0, 7, Arena::kChannels - 1}) {
                const auto seen =
                    arenas[static_cast<std::size_t>(reader)]->channel(writer, channel);
                CHECK(seen.front() == static_cast<std::byte>(writer * 32 + channel + 1));
                CHECK(seen.back() == static_cast<std::byte>(writer * 32 + channel + 1));
            }
        }
    }
    CHECK_THROWS_AS((void)arenas[0]->own_channel(Arena::kChannels), UsageError);
    CHECK_THROWS_AS((void)arenas[0]->channel(slots, 0), UsageError);
}

std::vector<Fd> make_regions(int slots) {
    std::vector<Fd> regions;
    for (int i = 0; i < slots; ++i) {
        regions.push_back(make_memory_file("region"));
        Arena::format(regions.back().get(), kSmallRegion);
    }
    return regions;
}

}  // namespace

TEST_CASE(
    "the queues of a channel lie behind the collectives' part, and are "
    "smaller for many slots") {
    for (const int slots : {1, 3, 64, 200}) {
        for (const std::size_t nbytes : {kSmallRegion, Arena::kDefaultBytes}) {
            const auto arenas = Arena::in_process(slots, nbytes);
            const Arena& arena = *arenas[0];
            const auto last = arena.own_channel(Arena::kChannels - 1);
            const auto* end = last.data() + last.size();
            for (int peer = 0; peer < slots; ++peer) {
                const auto queue = arena.own_queue(Arena::kChannels - 1, peer);
                CHECK(queue.data() >= end);
                CHECK(queue.size() % 128 == 0);
                end = queue.data() + queue.size();
                const auto seen = arenas[static_cast<std::size_t>(peer)]->queue_of(0, 31);
                CHECK(seen.data() == queue.data());
            }
            const auto stride = arena.own_channel(1).data() - arena.own_channel(0).data();
            CHECK(end - last.data() <= stride);
            CHECK(last.size() >= static_cast<std::size_t>(stride) / 2);
            const bool is_roomy = nbytes == Arena::kDefaultBytes && slots <= 60;
            CHECK((arena.queue_nbytes() == Arena::kQueueBytes) == (is_roomy || slots == 1));
            CHECK(arena.queue_nbytes() >= 384);
        }
    }
    CHECK_THROWS_AS((void)Arena::in_process(2, kSmallRegion)[0]->own_queue(0, 2), UsageError);
}

TEST_CASE("arena contract: one mapping, and mapped from descriptors") {
    check_contract(Arena::in_process(3, kSmallRegion));
    const auto regions = make_regions(2);
    const std::array fds{regions[0].get(), regions[1].get()};
    std::vector<std::unique_ptr<Arena>> arenas;
    for (int own = 0; own < 2; ++own) arenas.push_back(std::make_unique<Arena>(fds, own));
    check_contract(arenas);
}

TEST_CASE("a peer's region cannot be written, and another process sees what was") {
    const auto regions = make_regions(2);
    const std::array fds{regions[0].get(), regions[1].get()};
    const Arena mine(fds, 0);
    const pid_t writer = ::fork();
    if (writer == 0) {
        const Arena theirs(fds, 1);
        theirs.own_channel(3)[5] = std::byte{42};
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(writer, &status, 0);
    CHECK(mine.channel(1, 3)[5] == std::byte{42});
    const pid_t vandal = ::fork();
    if (vandal == 0) {
        // A sanitizer's handler would print; the plain death is what is asked for.
        std::signal(SIGSEGV, SIG_DFL);
        *const_cast<volatile std::byte*>(mine.channel(1, 0).data()) = std::byte{1};
        ::_exit(0);
    }
    ::waitpid(vandal, &status, 0);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

TEST_CASE(
    "memory that was given back takes no pages, reads as zeros and is a "
    "region still") {
    const auto regions = make_regions(2);
    const std::array fds{regions[0].get(), regions[1].get()};
    const Arena mine(fds, 0);
    const Arena theirs(fds, 1);
    std::memset(theirs.own_channel(3).data(), 7, theirs.own_channel(3).size());
    const auto taken = [&] {
        struct stat status{};
        ::fstat(fds[1], &status);
        return static_cast<std::size_t>(status.st_blocks) * 512;
    };
    CHECK(taken() >= theirs.own_channel(3).size());
    Arena::give_back(fds[1]);
    CHECK(taken() == Arena::kHeaderBytes);
    CHECK(mine.channel(1, 3).back() == std::byte{0});
    CHECK_NOTHROW(Arena(fds, 1));
    CHECK_THROWS_AS(Arena::give_back(-1), SystemError);
}

TEST_CASE("what is no region is refused") {
    const Fd memory = make_memory_file("nothing");
    const std::array fds{memory.get()};
    CHECK_THROWS_AS(Arena(fds, 0), UsageError);
    CHECK_THROWS_AS(Arena::format(memory.get(), 100), UsageError);
    grow_file(memory.get(), kSmallRegion);
    CHECK_THROWS_AS(Arena(fds, 0), UsageError);
    Arena::format(memory.get(), kSmallRegion);
    CHECK_THROWS_AS(Arena(fds, 1), UsageError);
    CHECK_NOTHROW(Arena(fds, 0));
}
