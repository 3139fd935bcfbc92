// What a running operation needs: who it is, where it was called, how it waits, and the observer
// that detects stopped processes by their heartbeat counters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "group/async_queue.hpp"
#include "shm/control_page.hpp"
#include "shm/heartbeat.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// Costs nothing until the first look. Looks are a few tens of milliseconds apart.
class HeartbeatObserver {
  public:
    // On a busy machine one heartbeat, and the next, may be late.
    static constexpr Clock::duration kSilence = 3 * Heartbeat::kBeat;

    void look(const ControlPage& page, Clock::time_point now) {
        // After so long without a look this process did not run, and others with it: a machine that
        // was suspended, a container that was paused. Restart the measurement.
        if (now - looked_ > 2 * Heartbeat::kBeat) seen_.clear();
        looked_ = now;
        seen_.resize(static_cast<std::size_t>(page.slots()), {0, now});
        for (int slot = 0; slot < page.slots(); ++slot) {
            LastHeartbeat& seen = seen_[static_cast<std::size_t>(slot)];
            const std::uint64_t beats = page.heartbeats(slot);
            if (beats != seen.beats || beats == 0) seen = {beats, now};
        }
    }
    // Time without a heartbeat while this process looked; 0 if not significant.
    [[nodiscard]] Clock::duration silence_of(int slot, Clock::time_point now) const {
        const auto index = static_cast<std::size_t>(slot);
        if (slot < 0 || index >= seen_.size() || seen_[index].beats == 0) return {};
        const auto silence = now - seen_[index].since;
        return silence >= kSilence ? silence : Clock::duration::zero();
    }

  private:
    struct LastHeartbeat {
        std::uint64_t beats;
        Clock::time_point since;
    };
    std::vector<LastHeartbeat> seen_;  // by slot
    Clock::time_point looked_{};
};

// The source line of an operation's call. It is looked up only when something is wrong or slow.

// Returns "train.py:31" for the calling thread; "" if unknown. May be slow.
using SiteSource = std::function<std::string()>;

// This rank's record of source lines on the page.
struct CallSiteWriter {
    ControlPage* page = nullptr;
    int slot = 0;
    int channel = 0;
    std::uint64_t tag = 0;  // as Activity shows it
    SiteSource source;
};

// A wait of user code, shown on the page from the first poll on. Belongs to the waiting thread; if
// two threads show their waits, each tries again at every poll.
class ShownWait {
  public:
    // `word`: in the format of Activity::LongWait.
    ShownWait(const CallSiteWriter& own, std::uint64_t word) noexcept : own_(own), word_(word) {}
    ShownWait(const ShownWait&) = delete;
    ShownWait& operator=(const ShownWait&) = delete;
    ~ShownWait() {
        if (number_ == 0) return;
        std::uint64_t mine = number_;
        on_page().number.compare_exchange_strong(mine, 0, std::memory_order_seq_cst);
    }
    // Called after each unsuccessful poll.
    void look() noexcept {
        auto& shown = on_page();
        if (number_ == 0) number_ = shown.count.fetch_add(1, std::memory_order_relaxed) + 1;
        if (shown.number.load(std::memory_order_relaxed) != number_) {
            shown.number.store(0, std::memory_order_seq_cst);
            shown.tag.store(own_.tag, std::memory_order_release);
            shown.word.store(word_, std::memory_order_release);
            shown.looks.store(0, std::memory_order_release);
            shown.number.store(number_, std::memory_order_seq_cst);
        }
        shown.looks.fetch_add(1, std::memory_order_seq_cst);
    }

  private:
    [[nodiscard]] Activity::LongWait& on_page() const noexcept {
        return own_.page->activity(own_.slot).wait;
    }

    const CallSiteWriter& own_;
    std::uint64_t word_;
    std::uint64_t number_ = 0;
};

// The call of one operation; lives as long as the operation, on the thread that runs it.
class OperationContext final : public WaitObserver {
  public:
    // `word`: the operation in the format of Activity.
    OperationContext(const CallSiteWriter& own, const Call& call, std::uint64_t word) noexcept
        : own_(own), call_(call), word_(word), wait_(own, word) {}

    // The source line; looked up once.
    const std::string& site() {
        if (!site_) site_ = call_.site != nullptr ? *call_.site : own_.source ? own_.source() : "";
        return *site_;
    }
    // Puts the source line on the page.
    void show() { own_.page->show_site(own_.slot, own_.channel, own_.tag, word_, site()); }
    [[nodiscard]] const Call& call() const noexcept { return call_; }
    [[nodiscard]] std::uint64_t word() const noexcept { return word_; }

    // How long the process of another slot has not run, as observed during this wait.
    [[nodiscard]] Clock::duration silence_of(int slot) {
        const auto now = Clock::now();
        heartbeats_.look(*own_.page, now);
        return heartbeats_.silence_of(slot, now);
    }

    bool wants_to_leave() override {
        heartbeats_.look(*own_.page, Clock::now());
        if (!call_.interrupt) return false;  // runs on the group's thread
        if (call_.interrupt()) return true;
        wait_.look();
        return false;
    }
    void tell_site() override { show(); }

  private:
    const CallSiteWriter& own_;
    const Call& call_;
    std::uint64_t word_;
    std::optional<std::string> site_;
    HeartbeatObserver heartbeats_;
    ShownWait wait_;
};

}  // namespace phalanx
