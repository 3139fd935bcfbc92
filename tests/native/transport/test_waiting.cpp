// A rank that waits for a late one over links sleeps; and what an early one has sent, and then
// left, is not lost meanwhile.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/between_hosts/node_exchange.hpp"
#include "collectives/kernels/checksum.hpp"
#include "support/promise.hpp"

using namespace phalanx;
using namespace std::chrono_literals;

namespace {

// How often a thread has slept: a wait that spins or yields does not count here.
long n_sleeps_of(pid_t thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string key = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(key)) return std::stol(line.substr(key.size()));
    }
    return -1;
}

// Returns once the thread has gone to sleep a few times more, and not before 250 ms.
bool goes_on_sleeping(pid_t thread) {
    const long before = n_sleeps_of(thread);
    std::this_thread::sleep_for(250ms);
    return test::wait_until([&] { return n_sleeps_of(thread) >= before + 3; });
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
    ControlPage page = ControlPage::in_process(1, 0);
    Waiter waiter(page, 0, 1, -1, WaitPolicy{});
    waiter.begin(Deadline(3 * test::kPatience), nullptr);
    NodeExchange team({0, 1, 2}, std::move(links), 0, true, false, LinkTuning{}, waiter);

    // Node 1: the header, later the rest, and it leaves. Node 2: everything, but only then.
    const pid_t waiting = ::gettid();
    std::atomic<bool> has_slept{true};
    std::thread others([&] {
        const auto message = message_of(op);
        const std::span<const std::byte> all(message);
        theirs[1]->try_send(all.first(sizeof op + 10));
        has_slept = has_slept && goes_on_sleeping(waiting);
        theirs[1]->try_send(all.subspan(sizeof op + 10));
        theirs[1]->send_abort_notice(1, {AbortKind::kClosed, 1, "it closed the group"});
        has_slept = has_slept && goes_on_sleeping(waiting);
        theirs[2]->try_send(all);
    });
    const std::vector<std::byte> x(kBytes);
    const auto begin = Clock::now();
    const long n_before = n_sleeps_of(waiting);
    CHECK_NOTHROW(team.exchange(op, x));
    const auto n_sleeps = n_sleeps_of(waiting) - n_before;
    const auto took = Clock::now() - begin;
    others.join();
    CHECK(has_slept);
    // It sleeps for 50 ms at a time; twice as often, and some for locks, is still next to nothing.
    CHECK(n_sleeps <= 20 + took / 25ms);
    CHECK(team.payload(1)[kBytes - 1] == std::byte{7});
    CHECK(team.payload(2)[kBytes - 1] == std::byte{7});
}
