// The protocol of the abort page: first wins, epochs, texts, doorbells, other
// processes.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "promise.hpp"
#include "transport/abort_page.hpp"
#include "transport/pulse_watch.hpp"

using namespace phalanx;

TEST_CASE("the first abort of an epoch wins and frees older epochs too") {
    auto page = AbortPage::in_process(3, 0);
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

TEST_CASE("long texts are cut between characters") {
    auto page = AbortPage::in_process(1, 1);
    const std::string text = std::string(499, 'x') + "\xc3\xa4" + "rest";
    page.abort(1, {AbortKind::kError, -1, text});
    CHECK(page.reason(1)->message == std::string(499, 'x'));
    CHECK(cut_text("abc", 3) == "abc");
}

TEST_CASE("a page is refused if it is not what was said") {
    const Fd memory = make_memory_file("page");
    CHECK_THROWS_AS(AbortPage(memory.get(), 2, 0, {}), UsageError);
    AbortPage::format(memory.get(), 2);
    CHECK_THROWS_AS(AbortPage(memory.get(), 2, 3, {}), UsageError);
    CHECK_THROWS_AS(AbortPage(memory.get(), 1, 0, {}), UsageError);
    CHECK_NOTHROW(AbortPage(memory.get(), 2, 2, {}));
    CHECK_THROWS_AS((void)AbortPage::nbytes(0), UsageError);
}

TEST_CASE("a page has room for what each slot counts of each rank of the world") {
    const Fd memory = make_memory_file("page");
    AbortPage::format(memory.get(), 2, 5);
    AbortPage page(memory.get(), 2, 0, {});
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
    AbortPage other(memory.get(), 2, 1, {});
    CHECK(other.tally(1, kActivityChannels - 1, 4, true)->load() == number);
    CHECK(other.reason(1)->message == "none of it is anywhere else");
    other.begin_group(1, 3, 7, 0);  // clears what a group before it has counted there
    for (int peer = 0; peer < 5; ++peer) CHECK(*page.tally(1, 3, peer, true) == 0);
    CHECK(*page.tally(1, 2, 4, true) == *page.tally(1, 4, 0, false) - 11);
    CHECK(*page.tally(0, 3, 0, false) != 0);
    CHECK_THROWS_AS(AbortPage::format(memory.get(), 2, AbortPage::kMaxRanks + 1), UsageError);
    CHECK(AbortPage::in_process(2, 0).ranks() == 2);
}

TEST_CASE("another process sees the reason and wakes the sleeper") {
    const Fd memory = make_memory_file("page");
    AbortPage::format(memory.get(), 2);
    AbortPage page(memory.get(), 2, 0, {});
    const pid_t child = ::fork();
    if (child == 0) {
        AbortPage theirs(memory.get(), 2, 1, {});
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
std::uint64_t next_beat(const AbortPage& page, int slot, std::uint64_t seen) {
    (void)test::wait_until([&] { return page.beats(slot) != seen; });
    return page.beats(slot);
}

}  // namespace

TEST_CASE("a slot's heart beats while its page is mapped; the supervisor has none") {
    const Fd memory = make_memory_file("page");
    AbortPage::format(memory.get(), 2);
    AbortPage supervisor(memory.get(), 2, 2, {});
    CHECK(supervisor.beats(0) == 0);
    {
        const AbortPage rank(memory.get(), 2, 0, {});
        // At once: it may be stopped before its heart's thread has run.
        const auto first = supervisor.beats(0);
        CHECK(first > 0);
        CHECK(next_beat(supervisor, 0, first) > first);
    }
    CHECK(supervisor.beats(0) == 0);
    CHECK(supervisor.beats(1) == 0);
    AbortPage next(memory.get(), 2, 0, {});
    CHECK(next_beat(supervisor, 0, 0) > 0);
    next.still(0);
    CHECK(supervisor.beats(0) == 0);
    supervisor.still(0);
}

TEST_CASE("a child of fork has no heart, and leaves its parent's alone") {
    const Fd memory = make_memory_file("page");
    AbortPage::format(memory.get(), 1);
    auto page = std::make_unique<AbortPage>(memory.get(), 1, 0, std::span<const int>());
    const AbortPage supervisor(memory.get(), 1, 1, {});
    REQUIRE(next_beat(supervisor, 0, 0) > 0);
    const pid_t child = ::fork();
    if (child == 0) {
        page.reset();
        ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    const auto seen = supervisor.beats(0);
    CHECK(seen > 0);
    CHECK(next_beat(supervisor, 0, seen) > seen);
}

TEST_CASE(
    "a broken link accuses its other end, and who could not be reached "
    "for all others") {
    const Reason broken{AbortKind::kLinkBroken, Reason::link(4095, 7), "broken"};
    CHECK(broken.accused(7) == 4095);
    CHECK(broken.accused(4095) == 7);
    CHECK(broken.accused(0) == 4095);
    CHECK(Reason{AbortKind::kRankFailure, 7, ""}.accused(7) == 7);
    CHECK(Reason{AbortKind::kLinkBroken, -1, ""}.accused(7) == -1);
}

TEST_CASE(
    "many authors and threads at once: one winner, the same whole text "
    "for everybody") {
    for (std::uint64_t epoch = 1; epoch <= 50; ++epoch) {
        auto page = AbortPage::in_process(2, 0);
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

TEST_CASE("a heart that stands still is a silence, one that beats or that is not there is none") {
    using namespace std::chrono_literals;
    const Fd memory = make_memory_file("page");
    AbortPage::format(memory.get(), 2);
    const AbortPage page(memory.get(), 2, 0, {});  // slot 0 has a heart, slot 1 has none
    const auto start = Clock::now();
    PulseWatch watch;
    CHECK(watch.silence_of(0, start) == 0s);
    std::uint64_t beats = 0;
    do {  // until no beat falls between the looks
        beats = page.beats(0);
        watch = PulseWatch();
        for (auto now = 0ms; now <= 1s; now += 100ms) watch.look(page, start + now);
    } while (page.beats(0) != beats);
    CHECK(watch.silence_of(0, start + 1s) == 1s);
    CHECK(watch.silence_of(0, start + PulseWatch::kSilence - 1ns) == 0s);
    CHECK(watch.silence_of(1, start + 1s) == 0s);
    CHECK(watch.silence_of(2, start + 1s) == 0s);
    const PulseWatch before = watch;
    watch.look(page, start + 1s + 2 * Heart::kBeat + 1ms);  // who looks so late has not run itself
    CHECK(watch.silence_of(0, start + 1s + 2 * Heart::kBeat + 1ms) == 0s);
    watch = before;
    REQUIRE(next_beat(page, 0, beats) != beats);
    watch.look(page, start + 1100ms);
    CHECK(watch.silence_of(0, start + 1100ms) == 0s);
}
