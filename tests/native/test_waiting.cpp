// A rank that waits for a late one over links sleeps; and what an early one has sent, and then
// left, is not lost meanwhile.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <time.h>

#include <cstring>
#include <thread>
#include <vector>

#include "collectives/checksum.hpp"
#include "collectives/link_team.hpp"

using namespace phalanx;
using namespace std::chrono_literals;

namespace {

double cpu_seconds_of_this_thread() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Op op_of(std::size_t nbytes) {
    Op op;
    op.epoch = 1;
    op.seq = 1;
    op.count = nbytes;
    op.kind = OpKind::kAllSum;
    op.dtype = Dtype::uint8;
    return op;
}

std::vector<std::byte> message_of(const Op& op) {
    std::vector<std::byte> bytes(sizeof op + op.nbytes() + sizeof(std::uint64_t), std::byte{7});
    std::memcpy(bytes.data(), &op, sizeof op);
    const auto payload = std::span(bytes).subspan(sizeof op, op.nbytes());
    const std::uint64_t mark = end_mark(op) ^ checksum_of(payload);
    std::memcpy(bytes.data() + bytes.size() - sizeof mark, &mark, sizeof mark);
    return bytes;
}

}  // namespace

TEST_CASE("a payload that came early survives the wait for another node, which costs no core") {
    constexpr std::size_t kBytes = 1000;
    const Op op = op_of(kBytes);
    std::vector<std::unique_ptr<Link>> links(3);
    std::vector<std::unique_ptr<Link>> theirs(3);
    for (int node = 1; node < 3; ++node) {
        int fds[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
        links[static_cast<std::size_t>(node)] = make_socket_link(node, fds[0]);
        theirs[static_cast<std::size_t>(node)] = make_socket_link(0, fds[1]);
    }
    AbortPage page = AbortPage::in_process(1, 0);
    Waiter waiter(page, 0, 1, -1, WaitPolicy{});
    waiter.begin(Deadline(10s), nullptr);
    LinkTeam team({0, 1, 2}, std::move(links), 0, true, false, LinkTuning{});

    // Node 1: the header, later the rest, and it leaves. Node 2: everything, but only then.
    std::thread others([&] {
        const auto message = message_of(op);
        const std::span<const std::byte> all(message);
        theirs[1]->try_send(all.first(sizeof op + 10));
        std::this_thread::sleep_for(300ms);
        theirs[1]->try_send(all.subspan(sizeof op + 10));
        theirs[1]->say_last_words(1, {AbortKind::kClosed, 1, "it closed the group"});
        std::this_thread::sleep_for(700ms);
        theirs[2]->try_send(all);
    });
    const std::vector<std::byte> x(kBytes);
    const double begin = cpu_seconds_of_this_thread();
    CHECK_NOTHROW(team.exchange(op, x, waiter));
    CHECK(cpu_seconds_of_this_thread() - begin < 0.3);
    others.join();
    CHECK(team.payload(1)[kBytes - 1] == std::byte{7});
    CHECK(team.payload(2)[kBytes - 1] == std::byte{7});
}
