// Where an operation was called, as its group asks for it: nothing is looked up before something
// is wrong or slow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "group/work.hpp"
#include "transport/abort_page.hpp"
#include "transport/pulse_watch.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// "train.py:31", of the thread that asks; "" where that is not known. May take its time.
using SiteSource = std::function<std::string()>;

// The own record of sites on the page.
struct OwnSites {
    AbortPage* page = nullptr;
    int slot = 0;
    int channel = 0;
    std::uint64_t tag = 0;  // as Activity shows it
    SiteSource source;
};

// Lives as long as the operation, on the thread that carries it out.
class Here final : public Caller {
  public:
    // `word`: the operation, as Activity shows it.
    Here(const OwnSites& own, const Call& call, std::uint64_t word) noexcept
        : own_(own), call_(call), word_(word) {}

    // Looked up once.
    const std::string& site() {
        if (!site_) site_ = call_.site != nullptr ? *call_.site : own_.source ? own_.source() : "";
        return *site_;
    }
    // Puts the site on the page.
    void show() { own_.page->show_site(own_.slot, own_.channel, own_.tag, word_, site()); }
    [[nodiscard]] const Call& call() const noexcept { return call_; }
    [[nodiscard]] std::uint64_t word() const noexcept { return word_; }

    // For how long the process of another slot has not run, as far as this wait has seen.
    [[nodiscard]] Clock::duration silence_of(int slot) {
        const auto now = Clock::now();
        pulses_.look(*own_.page, now);
        return pulses_.silence_of(slot, now);
    }

    bool wants_to_leave() override {
        pulses_.look(*own_.page, Clock::now());
        return call_.interrupt && call_.interrupt();
    }
    void tell_site() override { show(); }

  private:
    const OwnSites& own_;
    const Call& call_;
    std::uint64_t word_;
    std::optional<std::string> site_;
    PulseWatch pulses_;
};

}  // namespace phalanx
