// The contract of Link, on every kind of link.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "os/memory_map.hpp"
#include "support/memory_link.hpp"
#include "transport/shm_link.hpp"

using namespace phalanx;

namespace {

struct Pair {
    std::unique_ptr<Link> here, there;
    std::vector<Mapping> memory;
};

Pair memory_pair() {
    auto links = make_memory_links(0, 1, 1100);
    return {std::move(links.first), std::move(links.second), {}};
}
Pair socket_pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    return {make_socket_link(1, fds[0]), make_socket_link(0, fds[1]), {}};
}
// Blocks of a size that nothing else has: whatever is sent lies across some.
Pair striped_pair() {
    std::vector<std::unique_ptr<Link>> here, there;
    for (int i = 0; i < 3; ++i) {
        int fds[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
        here.push_back(make_socket_link(1, fds[0]));
        there.push_back(make_socket_link(0, fds[1]));
    }
    return {make_striped_link(1, std::move(here), {}, 97),
            make_striped_link(0, std::move(there), {}, 97),
            {}};
}
Pair arena_pair_of(std::size_t size, bool is_far) {
    Pair pair;
    for (int i = 0; i < 2; ++i) pair.memory.push_back(Mapping::anonymous(size));
    const std::span<std::byte> a(pair.memory[0].data(), size);
    const std::span<std::byte> b(pair.memory[1].data(), size);
    pair.here = make_arena_link(1, a, b, nullptr, 7, is_far);
    pair.there = make_arena_link(0, b, a, nullptr, 7, is_far);
    return pair;
}
Pair arena_pair() { return arena_pair_of(1500, false); }
// Of a size with room for several steps that are no whole number of them: large ones are written
// past the caches, in pieces that lie across the end.
Pair far_arena_pair() { return arena_pair_of(50'000, true); }
std::atomic<std::uint64_t>& advice_of(Pair& pair, std::size_t end) {
    return reinterpret_cast<ArenaHalf*>(pair.memory[end].data())->wants_streaming;
}

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

// Both ends send and receive at once until all has come.
void exchange(Link& link, const std::vector<std::byte>& out, std::vector<std::byte>& in) {
    std::size_t sent = 0;
    std::size_t received = 0;
    while (sent < out.size() || received < in.size()) {
        const auto moved = link.try_send(std::span(out).subspan(sent));
        sent += moved;
        const auto got = link.try_recv(std::span(in).subspan(received));
        received += got;
        if (moved + got == 0) std::this_thread::yield();
    }
}

struct Kind {
    std::string name;
    std::function<Pair()> make;
};
const std::vector<Kind> kKinds{{"memory", memory_pair},
                               {"socket", socket_pair},
                               {"arena", arena_pair},
                               {"arena, far", far_arena_pair},
                               {"striped", striped_pair}};

}  // namespace

TEST_CASE("a lost link over tcp names its addresses, also when it is given up") {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int one = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener, generic, length) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, generic, &length) == 0);
    REQUIRE(::connect(one, generic, length) == 0);
    const auto here = make_socket_link(1, one);
    auto there = make_socket_link(0, ::accept(listener, nullptr, nullptr));
    ::close(listener);
    CHECK(here->path() == "127.0.0.1 to 127.0.0.1");  // no card
    const auto why = [](const auto& body) -> std::string {
        try {
            body();
        } catch (const PeerLost& error) {
            return error.what();
        }
        return "nothing";
    };
    std::vector<std::byte> got(3);
    CHECK(why([&] { there->mark_broken("nonsense came"); }) ==
          "127.0.0.1 to 127.0.0.1: nonsense came");
    CHECK(why([&] { there->try_recv(got); }) == "127.0.0.1 to 127.0.0.1: nonsense came");
    there.reset();
    for (int i = 0; i < 2; ++i) {
        CHECK(why([&] { here->try_recv(got); }) ==
              "127.0.0.1 to 127.0.0.1: the other end closed it");
    }
}

TEST_CASE("link contract: bytes arrive whole and in order, both ways at once") {
    for (const Kind& kind : kKinds) {
        CAPTURE(kind.name);
        auto pair = kind.make();
        CHECK(pair.here->peer() == 1);
        CHECK(pair.there->peer() == 0);
        const auto a = noise(250'000, 1);
        const auto b = noise(130'011, 2);
        std::vector<std::byte> got_a(a.size());
        std::vector<std::byte> got_b(b.size());
        std::jthread other([&] { exchange(*pair.there, b, got_a); });
        exchange(*pair.here, a, got_b);
        other.join();
        CHECK(got_a == a);
        CHECK(got_b == b);
    }
}

TEST_CASE("link contract: a full link takes nothing, an empty one gives nothing") {
    for (const Kind& kind : kKinds) {
        CAPTURE(kind.name);
        auto pair = kind.make();
        std::vector<std::byte> bytes(1 << 16);
        CHECK(pair.here->try_recv(bytes) == 0);
        CHECK(pair.here->try_send(std::span<const std::byte>()) == 0);
        CHECK(pair.here->try_recv({}) == 0);
        std::size_t total = 0;
        for (std::size_t moved = 1; moved > 0; total += moved) moved = pair.here->try_send(bytes);
        CHECK(total >= 1000);
        CHECK(pair.here->try_send(bytes) == 0);
    }
}

TEST_CASE(
    "link contract: an abort notice comes after all that was sent, then the "
    "link is lost") {
    for (const Kind& kind : kKinds) {
        CAPTURE(kind.name);
        auto pair = kind.make();
        const auto sent = noise(300, 3);
        CHECK(pair.here->try_send(sent) == 300);
        pair.here->send_abort_notice(7, {AbortKind::kTimeout, 3, "too late"});
        pair.here->send_abort_notice(7, {AbortKind::kError, 4, "not heard"});
        std::vector<std::byte> got(300);
        CHECK(pair.there->try_recv(got) == 300);
        CHECK(got == sent);
        CHECK_FALSE(pair.there->drain_for_notice(8));
        const auto words = pair.there->drain_for_notice(7);
        REQUIRE(words);
        CHECK(words->kind == AbortKind::kTimeout);
        CHECK(words->culprit == 3);
        CHECK(words->message == "too late");
        for (int i = 0; i < 2; ++i) CHECK_THROWS_AS((void)pair.there->try_recv(got), PeerLost);
        CHECK_THROWS_AS(pair.there->try_send(got), PeerLost);  // broken as a whole
    }
}

TEST_CASE(
    "an abort notice can be peeked at while what was sent before it is "
    "still to come") {
    auto pair = socket_pair();
    const auto sent = noise(70'000, 4);
    CHECK(pair.here->try_send(sent) == sent.size());
    CHECK_FALSE(pair.there->peek_notice(7));
    pair.here->send_abort_notice(7, {AbortKind::kTimeout, 3, "too late"});
    for (int i = 0; i < 2; ++i) {
        CHECK_FALSE(pair.there->peek_notice(8));
        const auto words = pair.there->peek_notice(7);
        REQUIRE(words);
        CHECK(words->message == "too late");
    }
    std::vector<std::byte> got(sent.size());
    std::size_t size = 0;
    while (size < got.size()) size += pair.there->try_recv(std::span(got).subspan(size));
    CHECK(got == sent);
    CHECK(pair.there->peek_notice(7)->message == "too late");
    CHECK(pair.there->drain_for_notice(7)->message == "too late");
    auto bare = socket_pair();
    CHECK(bare.here->try_send(sent) == sent.size());
    bare.here->finish();
    CHECK_FALSE(bare.there->peek_notice(7));
}

TEST_CASE(
    "a queue in the arena ends in its own epoch only, and knows when "
    "trying is of use") {
    auto pair = arena_pair();
    std::vector<std::byte> bytes(2000);
    CHECK(pair.here->can_send());
    CHECK_FALSE(pair.there->can_recv());
    const auto capacity = pair.here->try_send(bytes);
    CHECK_FALSE(pair.here->can_send());
    CHECK(pair.there->can_recv());
    auto* half = reinterpret_cast<ArenaHalf*>(pair.memory[0].data());
    half->ended_epoch.store(6);  // an old group was closed late
    CHECK_FALSE(pair.there->has_ended());
    CHECK(pair.there->try_recv(bytes) == capacity);
    CHECK(pair.there->try_recv(bytes) == 0);
    pair.here->finish();
    CHECK(pair.there->has_ended());
    reset_arena_half(std::span(pair.memory[0].data(), 1500));
    CHECK(half->head == 0);
    CHECK(half->ended_epoch == 0);
}

TEST_CASE("link contract: an end without words is only an end") {
    for (const Kind& kind : kKinds) {
        // Memory does not notice that nobody is there.
        if (kind.name.starts_with("arena")) continue;
        CAPTURE(kind.name);
        auto pair = kind.make();
        pair.here.reset();
        std::vector<std::byte> got(10);
        CHECK_FALSE(pair.there->drain_for_notice(1));
        CHECK_THROWS_AS((void)pair.there->try_recv(got), PeerLost);
    }
}

TEST_CASE("a queue in the arena does not follow a corrupt peer") {
    auto pair = arena_pair();
    auto* half = reinterpret_cast<ArenaHalf*>(pair.memory[1].data());
    half->head.store(1 << 20);
    std::vector<std::byte> bytes(10);
    CHECK_THROWS_AS(pair.here->try_recv(bytes), PeerLost);
    auto again = arena_pair();
    reinterpret_cast<ArenaHalf*>(again.memory[1].data())->tail.store(5);
    CHECK_THROWS_AS(again.here->try_send(bytes), PeerLost);
}

TEST_CASE("a reader to whom fresh lines come slowly asks for streaming, until its half is reset") {
    auto pair = far_arena_pair();
    std::vector<std::byte> bytes(9000);
    CHECK(pair.here->try_send(bytes) == bytes.size());
    CHECK(advice_of(pair, 1) == 0);
    CHECK(pair.there->try_recv(std::span(bytes).first(100)) == 100);  // too little to tell
    CHECK(advice_of(pair, 1) == 0);
    for (int step = 0; step < 8; ++step) {
        (void)pair.there->try_recv(bytes);
        (void)pair.here->try_send(bytes);
    }
    CHECK(advice_of(pair, 1) == 1);
    CHECK(advice_of(pair, 0) == 0);
    reset_arena_half(std::span(pair.memory[1].data(), 50'000));
    CHECK(advice_of(pair, 1) == 0);
}

TEST_CASE("a large message goes through a queue in steps, so that one end reads what is there") {
    auto pair = arena_pair_of(100'000, false);
    std::vector<std::byte> bytes(90'000);
    const auto sent = pair.here->try_send(bytes);
    CHECK(sent < bytes.size() / 4);
    CHECK(pair.there->try_recv(bytes) == sent);
}

TEST_CASE("what is no stream socket is refused") {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0);
    CHECK_THROWS_AS(make_socket_link(1, fds[0]), UsageError);
    CHECK_THROWS_AS(make_socket_link(1, fds[1]), UsageError);
}
