// The protocol of the control page: first wins, epochs, texts, doorbells, other
// processes.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "group/operation_context.hpp"
#include "shm/control_page.hpp"
#include "support/promise.hpp"

using namespace phalanx;

TEST_CASE("the first abort of an epoch wins and frees older epochs too") {
    auto page = ControlPage::in_process(3, 0);
    auto other = page.view_as(2);
    CHECK_FALSE(page.is_aborted(4));
    CHECK_FALSE(page.reason(4));
    CHECK(page.abort(4, {AbortKind::kTimeout, 1, "first"}));
    CHECK_FALSE(other.abort(4, {AbortKind::kError, 2, "second"}));
    CHECK_FALSE(page.abort(3, {AbortKind::kError, 2, "older"}));
    CHECK_FALSE(page.abort(4, {AbortKind::kError, 2, "own again"}));
    CHECK(other.reason(4)->message == "first");
    CHECK(other.reason(3)->kind == AbortKind::kTimeout);
    CHECK(other.reason(4)->culprit == 1);
    CHECK_FALSE(other.is_aborted(5));
    CHECK(other.abort(5, {AbortKind::kRankFailure, 0, "later"}));
    CHECK(page.reason(5)->message == "later");
}

TEST_CASE("an abort rings for ranks that sleep, and for no other") {
    auto page = ControlPage::in_process(2, 0);
    page.doorbell(1).sleeping = 1;
    page.abort(1, {AbortKind::kError, 1, "x"});
    CHECK(page.doorbell(0).bell == 0);
    CHECK(page.doorbell(1).bell == 1);
}

TEST_CASE("an abort that cannot get the claim of its record leaves the claim to its holder") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 1);
    ControlPage page(memory.get(), 1, 1, {});
    const Mapping raw(memory.get(), ControlPage::nbytes(1), Access::kReadWrite);
    // The record of the supervisor, by its text: fields and the claim are in front of the text.
    page.abort(1, {AbortKind::kError, 0, "with the claim"});
    const std::string_view all(reinterpret_cast<const char*>(raw.data()), ControlPage::nbytes(1));
    const auto text_at = all.find("with the claim");
    REQUIRE(text_at != std::string_view::npos);
    auto* const claim = reinterpret_cast<std::atomic<std::uint32_t>*>(
        raw.data() + text_at / kCacheLine * kCacheLine);
    CHECK(*claim == 0);
    *claim = 1;
    CHECK(page.abort(2, {AbortKind::kError, 0, "without the claim"}));
    CHECK(*claim == 1);
    CHECK(page.reason(2)->message == "without the claim");
}

TEST_CASE("long texts are cut between characters") {
    auto page = ControlPage::in_process(1, 1);
    const std::string text = std::string(499, 'x') + "\xc3\xa4" + "rest";
    page.abort(1, {AbortKind::kError, -1, text});
    CHECK(page.reason(1)->message == std::string(499, 'x'));
    CHECK(cut_text("abc", 3) == "abc");
}

TEST_CASE("a page is refused if it is not what was said") {
    const Fd memory = make_memory_file("page");
    CHECK_THROWS_AS(ControlPage(memory.get(), 2, 0, {}), UsageError);
    ControlPage::format(memory.get(), 2);
    CHECK_THROWS_AS(ControlPage(memory.get(), 2, 3, {}), UsageError);
    CHECK_THROWS_AS(ControlPage(memory.get(), 1, 0, {}), UsageError);
    CHECK_NOTHROW(ControlPage(memory.get(), 2, 2, {}));
    CHECK_THROWS_AS((void)ControlPage::nbytes(0), UsageError);
}

TEST_CASE("a page has room for what each slot counts of each rank of the world") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 2, 5);
    ControlPage page(memory.get(), 2, 0, {});
    CHECK(page.ranks() == 5);
    CHECK(page.tally(0, 0, 5, false) == nullptr);
    std::uint64_t number = 0;
    for (const int slot : {0, 1}) {
        for (int channel = 0; channel < kActivityChannels; ++channel) {
            for (int peer = 0; peer < 5; ++peer) {
                for (const bool is_recv : {false, true}) {
                    CHECK(page.tally(slot, channel, peer, is_recv)->exchange(++number) == 0);
                }
            }
        }
    }
    page.abort(1, {AbortKind::kError, 1, "none of it is anywhere else"});
    ControlPage other(memory.get(), 2, 1, {});
    CHECK(other.tally(1, kActivityChannels - 1, 4, true)->load() == number);
    CHECK(other.reason(1)->message == "none of it is anywhere else");
    other.begin_group(1, 3, 7, 0);  // clears what a group before it has counted there
    for (int peer = 0; peer < 5; ++peer) CHECK(*page.tally(1, 3, peer, true) == 0);
    CHECK(*page.tally(1, 2, 4, true) == *page.tally(1, 4, 0, false) - 11);
    CHECK(*page.tally(0, 3, 0, false) != 0);
    CHECK_THROWS_AS(ControlPage::format(memory.get(), 2, ControlPage::kMaxRanks + 1), UsageError);
    CHECK(ControlPage::in_process(2, 0).ranks() == 2);
}

TEST_CASE("another process sees the reason and wakes the sleeper") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 2);
    ControlPage page(memory.get(), 2, 0, {});
    const pid_t child = ::fork();
    if (child == 0) {
        ControlPage theirs(memory.get(), 2, 1, {});
        theirs.abort(9, {AbortKind::kRankFailure, 1, "gone"});
        ::_exit(0);
    }
    CHECK(test::wait_until([&] {
        page.doorbell(0).sleep(std::chrono::milliseconds(50), [&] { return page.is_aborted(9); });
        return page.is_aborted(9);
    }));
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(page.reason(9));
    CHECK(page.reason(9)->message == "gone");
}

namespace {

// Until the count of the slot is another than `seen`: the new one.
std::uint64_t next_beat(const ControlPage& page, int slot, std::uint64_t seen) {
    (void)test::wait_until([&] { return page.heartbeats(slot) != seen; });
    return page.heartbeats(slot);
}

}  // namespace

TEST_CASE("a slot has a heartbeat while its page is mapped; the supervisor has none") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 2);
    ControlPage supervisor(memory.get(), 2, 2, {});
    CHECK(supervisor.heartbeats(0) == 0);
    {
        const ControlPage rank(memory.get(), 2, 0, {});
        // At once: it may be stopped before its heartbeat's thread has run.
        const auto first = supervisor.heartbeats(0);
        CHECK(first > 0);
        CHECK(next_beat(supervisor, 0, first) > first);
    }
    CHECK(supervisor.heartbeats(0) == 0);
    CHECK(supervisor.heartbeats(1) == 0);
    ControlPage next(memory.get(), 2, 0, {});
    CHECK(next_beat(supervisor, 0, 0) > 0);
    next.mark_stopped(0);
    CHECK(supervisor.heartbeats(0) == 0);
    supervisor.mark_stopped(0);
}

TEST_CASE("a new process in a slot does not show the message that a killed one waited for") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 1);
    const ControlPage supervisor(memory.get(), 1, 1, {});
    const auto awaited = Activity::word_of(0, true, 0, 7);
    const auto own = Activity::word_of(0, true, 0, 1);
    {
        ControlPage killed(memory.get(), 1, 0, {});
        killed.activity(0).show(awaited);
    }
    CHECK(supervisor.activity(0).pair == awaited);
    ControlPage next(memory.get(), 1, 0, {});
    CHECK(supervisor.activity(0).pair == 0);
    next.activity(0).show(own);
    CHECK(supervisor.activity(0).pair == own);
}

TEST_CASE("a child of fork has no heartbeat, and leaves its parent's alone") {
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 1);
    auto page = std::make_unique<ControlPage>(memory.get(), 1, 0, std::span<const int>());
    const ControlPage supervisor(memory.get(), 1, 1, {});
    REQUIRE(next_beat(supervisor, 0, 0) > 0);
    const pid_t child = ::fork();
    if (child == 0) {
        page.reset();
        ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    const auto seen = supervisor.heartbeats(0);
    CHECK(seen > 0);
    CHECK(next_beat(supervisor, 0, seen) > seen);
}

TEST_CASE(
    "a broken link accuses its other end, and who could not be reached "
    "for all others") {
    const AbortReason broken{AbortKind::kLinkBroken, AbortReason::link(4095, 7), "broken"};
    CHECK(broken.culprit_rank(7) == 4095);
    CHECK(broken.culprit_rank(4095) == 7);
    CHECK(broken.culprit_rank(0) == 4095);
    constexpr int kLast = ControlPage::kMaxRanks - 1;
    const AbortReason last{AbortKind::kLinkBroken, AbortReason::link(kLast, 7), "broken"};
    CHECK(last.culprit_rank(0) == kLast);
    CHECK(AbortReason{AbortKind::kRankFailure, 7, ""}.culprit_rank(7) == 7);
    CHECK(AbortReason{AbortKind::kLinkBroken, -1, ""}.culprit_rank(7) == -1);
}

TEST_CASE(
    "many authors and threads at once: one winner, the same whole text "
    "for everybody") {
    for (std::uint64_t epoch = 1; epoch <= 50; ++epoch) {
        auto page = ControlPage::in_process(2, 0);
        std::atomic<int> winners{0};
        std::array<std::string, 6> seen;
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < seen.size(); ++i) {
            threads.emplace_back([&, i] {
                auto mine = page.view_as(static_cast<int>(i % 3));
                const std::string text(100 + i * 20, static_cast<char>('a' + i));
                if (mine.abort(epoch, {AbortKind::kError, static_cast<int>(i), text})) ++winners;
                seen[i] = mine.reason(epoch)->message;
            });
        }
        threads.clear();
        CHECK(winners == 1);
        for (const auto& text : seen) CHECK(text == seen[0]);
        CHECK(seen[0].size() == 100 + static_cast<std::size_t>(seen[0][0] - 'a') * 20);
    }
}

TEST_CASE("a heartbeat that stops is a silence, one that goes on or was never there is none") {
    using namespace std::chrono_literals;
    const Fd memory = make_memory_file("page");
    ControlPage::format(memory.get(), 2);
    const ControlPage page(memory.get(), 2, 0, {});  // slot 0 has a heartbeat, slot 1 has none
    const auto start = Clock::now();
    HeartbeatObserver watch;
    CHECK(watch.silence_of(0, start) == 0s);
    std::uint64_t beats = 0;
    do {  // until no beat falls between the looks
        beats = page.heartbeats(0);
        watch = HeartbeatObserver();
        for (auto now = 0ms; now <= 1s; now += 100ms) watch.look(page, start + now);
    } while (page.heartbeats(0) != beats);
    CHECK(watch.silence_of(0, start + 1s) == 1s);
    CHECK(watch.silence_of(0, start + HeartbeatObserver::kSilence - 1ns) == 0s);
    CHECK(watch.silence_of(1, start + 1s) == 0s);
    CHECK(watch.silence_of(2, start + 1s) == 0s);
    const HeartbeatObserver before = watch;
    watch.look(page,
               start + 1s + 2 * Heartbeat::kBeat + 1ms);  // who looks so late has not run itself
    CHECK(watch.silence_of(0, start + 1s + 2 * Heartbeat::kBeat + 1ms) == 0s);
    watch = before;
    REQUIRE(next_beat(page, 0, beats) != beats);
    watch.look(page, start + 1100ms);
    CHECK(watch.silence_of(0, start + 1100ms) == 0s);
}
