// Failures are reported also while memory is refused, and the process goes on.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "support/messages.hpp"

using namespace phalanx;
using namespace phalanx::test;

namespace {

thread_local bool is_refused = false;

struct Refused {
    Refused() { is_refused = true; }
    ~Refused() { is_refused = false; }
};

const std::string kLong(100, 'x');

}  // namespace

// Of the whole test program; as the standard's, but for threads that refuse. Not inline, as gcc
// warns of `free` for what came from `new` otherwise.
[[gnu::noinline]] void* operator new(std::size_t size) {
    void* const memory = is_refused ? nullptr : std::malloc(size > 0 ? size : 1);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return is_refused ? nullptr : std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("an operation that fails without memory is over for its peers too") {
    for (const auto& hosts : {std::vector{0, 0}, std::vector{0, 1}}) {
        World world(options(hosts));
        const auto thrown = world.run([&](Group& group) {
            Floats array(10);
            if (group.rank() == 0) return group.run(array.call(OpKind::kRecv, 1));
            Call call;
            call.interrupt = [] { return is_refused = true; };
            try {
                group.run(call);
            } catch (...) {
                is_refused = false;
                throw;
            }
        });
        CHECK(thrown[1]);
        const auto reason = reason_of(thrown[0]);
        REQUIRE(reason);
        CHECK(reason->kind == AbortKind::kError);
        CHECK(reason->culprit == 1);
        CHECK(reason->message == kNoMemory);
    }
}

TEST_CASE("a group is aborted and closed without memory") {
    for (const bool is_close : {false, true}) {
        for (const auto& hosts : {std::vector{0, 0}, std::vector{0, 1}}) {
            World world(options(hosts));
            const auto thrown = world.run([&](Group& group) {
                Floats array(10);
                if (group.rank() == 0) return group.run(array.call(OpKind::kRecv, 1));
                const AbortReason reason{AbortKind::kError, 1, kLong};
                const Refused refused;
                if (is_close) return group.close();
                CHECK(group.abort(reason));
            });
            CHECK_FALSE(thrown[1]);
            const auto reason = reason_of(thrown[0]);
            REQUIRE(reason);
            CHECK(reason->culprit == 1);
            CHECK(reason->kind == (is_close ? AbortKind::kClosed : AbortKind::kError));
        }
    }
}

TEST_CASE("a queued operation that fails without memory keeps its reason") {
    AsyncQueue queue([](const Call&, Deadline) {
        try {
            throw Aborted({AbortKind::kTimeout, 3, kLong});
        } catch (const Aborted&) {
            is_refused = true;  // from now on, also when the queue stores the outcome
            throw;
        }
    });
    const auto work = std::make_shared<AsyncOperation>(Call{}, Deadline(), nullptr);
    REQUIRE(queue.reserve_slot());
    queue.push(work);
    REQUIRE(wait_until([&] { return work->is_done(); }));
    try {
        work->check();
        FAIL("it has failed");
    } catch (const Aborted& error) {
        CHECK(error.reason.kind == AbortKind::kTimeout);
        CHECK(error.reason.culprit == 3);
        CHECK(error.reason.message == kLong);
    }
}

TEST_CASE("a link says and hears a failure without memory") {
    int both[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    const auto link = make_socket_link(1, both[0]);
    {
        const auto peer = make_socket_link(0, both[1]);
        peer->send_abort_notice(1, {AbortKind::kTimeout, 3, kLong});
    }
    const AbortReason reason{AbortKind::kError, 0, kLong};
    {
        const Refused refused;
        link->send_abort_notice(1, reason);  // the peer is gone
        const auto words = link->drain_for_notice(1);
        CHECK(words);
        CHECK(words->kind == AbortKind::kTimeout);
        CHECK(words->culprit == 3);
        CHECK(words->message == kNoMemory);
    }
}
