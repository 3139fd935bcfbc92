// Whose process has stopped, as one sees it who waits long on the same page. Knows nothing of what
// is waited for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "transport/abort_page.hpp"
#include "transport/heart.hpp"

namespace phalanx {

// Free until the first look. Looks are a few tens of milliseconds apart.
class PulseWatch {
  public:
    // A busy machine may be late with one beat, and with the next.
    static constexpr Clock::duration kSilence = 3 * Heart::kBeat;

    void look(const AbortPage& page, Clock::time_point now) {
        // Who has not looked for so long has not run itself, and others with it: a machine that
        // was suspended, a container that was paused.
        if (now - looked_ > 2 * Heart::kBeat) seen_.clear();
        looked_ = now;
        seen_.resize(static_cast<std::size_t>(page.slots()), {0, now});
        for (int slot = 0; slot < page.slots(); ++slot) {
            Seen& seen = seen_[static_cast<std::size_t>(slot)];
            const std::uint64_t beats = page.beats(slot);
            if (beats != seen.beats || beats == 0) seen = {beats, now};
        }
    }
    // For how long its heart has not beaten while one looked; 0 where that means nothing.
    [[nodiscard]] Clock::duration silence_of(int slot, Clock::time_point now) const {
        const auto index = static_cast<std::size_t>(slot);
        if (slot < 0 || index >= seen_.size() || seen_[index].beats == 0) return {};
        const auto silence = now - seen_[index].since;
        return silence >= kSilence ? silence : Clock::duration::zero();
    }

  private:
    struct Seen {
        std::uint64_t beats;
        Clock::time_point since;
    };
    std::vector<Seen> seen_;  // by slot
    Clock::time_point looked_{};
};

}  // namespace phalanx
