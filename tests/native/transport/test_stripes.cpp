// One stream over several sockets: blocks, what one of them loses, and who is
// named.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "support/memory_link.hpp"

using namespace phalanx;

namespace {

struct Ends {
    std::unique_ptr<Link> here, there;
    std::vector<std::array<int, 2>> fds;  // of each stripe, this end and the other
};

// Blocks of `block` bytes on `count` sockets; `names` of one end.
Ends striped(std::size_t count, std::size_t block, std::vector<std::string> names = {}) {
    Ends ends;
    std::array<std::vector<std::unique_ptr<Link>>, 2> stripes;
    for (std::size_t i = 0; i < count; ++i) {
        std::array<int, 2> both{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both.data()) == 0);
        ends.fds.push_back(both);
        stripes[0].push_back(make_socket_link(1, both[0]));
        stripes[1].push_back(make_socket_link(0, both[1]));
    }
    ends.here = make_striped_link(1, std::move(stripes[0]), std::move(names), block);
    ends.there = make_striped_link(0, std::move(stripes[1]), {}, block);
    return ends;
}

std::vector<std::byte> counted(std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
    return bytes;
}

// What lies in a socket, unread.
std::string unread(int fd) {
    std::array<char, 4096> bytes{};
    const auto got = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

std::string why_lost(Link& link, std::span<std::byte> into) {
    try {
        (void)link.try_recv(into);
    } catch (const PeerLost& error) {
        return error.what();
    }
    return "not lost";
}

}  // namespace

TEST_CASE("stripes: each block of a stream travels on the socket whose turn it is") {
    auto ends = striped(3, 4);
    const std::string text = "abcdefghijklmnopqrstuvwxy";
    const auto bytes = std::as_bytes(std::span(text));
    CHECK(ends.here->try_send(bytes.first(2)) == 2);
    const std::span<const std::byte> parts[] = {bytes.subspan(2, 1), bytes.subspan(3, 9),
                                                bytes.subspan(12)};
    CHECK(ends.here->try_send(parts) == 23);
    CHECK(unread(ends.fds[0][1]) == "abcdmnopy");
    CHECK(unread(ends.fds[1][1]) == "efghqrst");
    CHECK(unread(ends.fds[2][1]) == "ijkluvwx");
    std::vector<std::byte> got(25);
    CHECK(ends.there->try_recv(std::span(got).first(3), std::span(got).subspan(3, 10)) == 13);
    CHECK(ends.there->try_recv(std::span(got).subspan(13)) == 12);
    CHECK(std::equal(got.begin(), got.end(), bytes.begin()));
}

TEST_CASE(
    "stripes: pieces of any size, at blocks of any size, come out as "
    "they went in") {
    const auto sent = counted(20'000);
    for (const std::size_t count : {2U, 3U}) {
        for (const std::size_t block : {1U, 7U, 64U, 1000U, 100'000U}) {
            CAPTURE(count);
            CAPTURE(block);
            auto ends = striped(count, block);
            std::vector<std::byte> got(sent.size());
            std::size_t out = 0;
            std::size_t in = 0;
            for (std::size_t step = 1; in < sent.size(); step = step * 5 % 1009 + 1) {
                const auto rest = std::span(sent).subspan(out);
                const auto size = std::min(step, rest.size());
                const std::span<const std::byte> parts[] = {
                    rest.first(size / 3), rest.subspan(size / 3, size - size / 3)};
                out += ends.here->try_send(parts);
                const auto room = std::span(got).subspan(in);
                const auto half = std::min(step / 2, room.size());
                const auto more = std::min<std::size_t>(11, room.size() - half);
                in += ends.there->try_recv(room.first(half), room.subspan(half, more));
            }
            CHECK(got == sent);
        }
    }
}

TEST_CASE("stripes: one waits for the socket whose turn it is") {
    auto ends = striped(2, 4);
    const auto bytes = counted(6);
    std::vector<pollfd> polled;
    ends.here->add_polled(polled, POLLIN | POLLOUT);
    REQUIRE(polled.size() == 2);
    CHECK(polled[0].fd == ends.fds[0][0]);
    CHECK(polled[0].events == POLLIN);
    CHECK(polled[1].fd == ends.fds[0][0]);
    CHECK(polled[1].events == POLLOUT);
    CHECK(ends.here->try_send(bytes) == 6);
    polled.clear();
    ends.here->add_polled(polled, POLLOUT);
    ends.there->add_polled(polled, POLLIN);
    CHECK(polled[0].fd == ends.fds[1][0]);
    CHECK(polled[1].fd == ends.fds[0][1]);
    std::vector<std::byte> got(5);
    CHECK(ends.there->try_recv(got) == 5);
    polled.clear();
    ends.there->add_polled(polled, POLLIN);
    CHECK(polled[0].fd == ends.fds[1][1]);
}

TEST_CASE(
    "stripes: what came before one of them was lost is given first, then "
    "it is named") {
    auto ends = striped(2, 4, {"10.0.0.1 to 10.0.0.2", "10.0.1.1 to 10.0.1.2"});
    const auto bytes = counted(6);
    CHECK(ends.there->try_send(bytes) == 6);
    ::shutdown(ends.fds[1][0], SHUT_RDWR);
    CHECK_FALSE(ends.here->has_ended());
    std::vector<std::byte> got(12);
    CHECK(ends.here->try_recv(got) == 6);
    for (int i = 0; i < 2; ++i) {
        CHECK(why_lost(*ends.here, got) ==
              "connection 2 of 2, 10.0.1.1 to 10.0.1.2: the other end closed it");
    }
}

TEST_CASE("stripes: a peer that is gone is no lost connection") {
    auto ends = striped(2, 4, {"10.0.0.1 to 10.0.0.2", "10.0.1.1 to 10.0.1.2"});
    ends.there.reset();
    CHECK(ends.here->has_ended());
    std::vector<std::byte> got(12);
    CHECK(why_lost(*ends.here, got) == "the other end closed it");
}

TEST_CASE(
    "stripes: an abort notice lies across blocks, also where one socket was "
    "lost meanwhile") {
    for (const std::size_t block : {64U, 1000U}) {
        auto ends = striped(2, block);
        const auto bytes = counted(300);
        CHECK(ends.here->try_send(bytes) == 300);
        ends.here->send_abort_notice(7, {AbortKind::kTimeout, 3, "too late"});
        const auto words = ends.there->drain_for_notice(7);
        REQUIRE(words);
        CHECK(words->message == "too late");
        // What is written to a peer that has gone is refused; what it said is heard
        // nevertheless.
        auto again = striped(2, block);
        again.here->send_abort_notice(7, {AbortKind::kTimeout, 3, "too late"});
        again.here.reset();
        CHECK_THROWS_AS((void)again.there->try_send(bytes), PeerLost);
        CHECK(again.there->drain_for_notice(7)->message == "too late");
    }
}

TEST_CASE(
    "stripes: over sockets of tcp each is called by its addresses, over "
    "one it is a link") {
    std::array<std::vector<Fd>, 2> fds;
    for (int i = 0; i < 2; ++i) {
        const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<unsigned>(i));
        socklen_t length = sizeof address;
        auto* generic = reinterpret_cast<sockaddr*>(&address);
        REQUIRE(::bind(listener, generic, length) == 0);
        REQUIRE(::listen(listener, 1) == 0);
        REQUIRE(::getsockname(listener, generic, &length) == 0);
        fds[0].emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
        REQUIRE(::connect(fds[0].back().get(), generic, length) == 0);
        fds[1].emplace_back(::accept(listener, nullptr, nullptr));
        ::close(listener);
    }
    const auto here = make_striped_link(1, std::move(fds[0]));
    const auto there = make_striped_link(0, std::move(fds[1]));
    CHECK(here->paths() ==
          std::vector<std::string>{"127.0.0.1 to 127.0.0.1", "127.0.0.1 to 127.0.0.2"});
    CHECK(there->paths()[1] == "127.0.0.2 to 127.0.0.1");
    int both[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    std::vector<Fd> only;
    only.emplace_back(both[0]);
    const auto one = make_striped_link(1, std::move(only));
    CHECK(one->paths().empty());
    CHECK(one->descriptor() == both[0]);
    ::close(both[1]);
    CHECK_THROWS_AS(make_striped_link(1, std::vector<Fd>{}), UsageError);
}
