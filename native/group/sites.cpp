// After a mismatch: from what this rank knows to a text that says where both calls stand.
#include <poll.h>

#include <algorithm>
#include <array>

#include "base/site_text.hpp"
#include "group/group.hpp"

namespace phalanx {

namespace {

// Who is named in a mismatch is inside the operation, or was, and says where at once or after the
// first sleep of its wait (50 ms); a busy machine doubles that.
constexpr std::chrono::milliseconds kSitePatience{100};
// Who sends waits visibly after 0.2 ms, if what it sends has no room to be put aside.
constexpr std::chrono::milliseconds kSenderPatience{10};
// Peers ring, or their last words make a descriptor ready: only what was missed waits so long.
constexpr std::chrono::milliseconds kSiteBite{5};

}  // namespace

// What other ranks say of themselves, wherever they can be heard: those of this host on the page,
// others in their last words, which is why this rank says its own in the middle. All ranks of the
// operation do the same, so all come to the same text, and one is the first on the page.
void Group::learn_sites(Reason& reason, Here& here, Pairs::Lane* lane) {
    if (site_gaps(reason.message).empty()) return;
    here.show();
    page_->wake_sleepers();
    fill_site_gap(reason.message, world_rank(rank_), here.site());
    reason.site = here.site();

    const auto begun_at = Clock::now();
    const auto is_over = [&] {
        return page_->is_aborted(epoch_) || Clock::now() >= begun_at + kSitePatience;
    };
    const auto is_complete_here = [&] {
        const bool may_come =
            lane == nullptr || !lane->was_put_aside || Clock::now() < begun_at + kSenderPatience;
        return find_sites_here(reason.message, here, lane, may_come);
    };
    while (!is_complete_here() && !is_over()) {
        page_->doorbell(own_sites_.slot).sleep(kSiteBite, [&] {
            return is_complete_here() || page_->is_aborted(epoch_);
        });
    }
    // Words on a link are final: where the page has a reason already, that one is said (tell).
    if (page_->is_aborted(epoch_)) return close_site_gaps(reason.message);
    if (lane == nullptr) {
        say_last_words(reason);
    } else {
        pairs_->say_last_words(reason, lane);
    }
    while (!find_sites_afar(reason.message, lane) && !is_over()) {
        std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
        for (const int rank : site_gaps(reason.message)) {
            const Link* link = voice_of(rank, lane);
            if (link != nullptr) link->add_polled(polled, POLLIN);
        }
        ::poll(polled.data(), static_cast<nfds_t>(polled.size()),
               static_cast<int>(kSiteBite.count()));
    }
    close_site_gaps(reason.message);
}

int Group::slot_of(int world_rank) const noexcept {
    const auto found = std::find(members_.begin(), members_.end(), world_rank);
    return found == members_.end()
               ? -1
               : page_slots_[static_cast<std::size_t>(found - members_.begin())];
}

// True if nobody of this host is still to be heard. `may_come`: also a sender that is not seen
// waiting; if it is not, what it had sent was put aside, and it has gone on.
bool Group::find_sites_here(std::string& text, const Here& here, const Pairs::Lane* lane,
                            bool may_come) const {
    bool is_complete = true;
    for (const int rank : site_gaps(text)) {
        const int slot = slot_of(rank);
        if (slot < 0) continue;
        const std::uint64_t word =
            lane == nullptr
                ? here.word()
                : Activity::word_of(channel_, !lane->is_recv, world_rank(rank_), lane->seq);
        if (const auto site = page_->site(slot, own_sites_.tag, word)) {
            fill_site_gap(text, rank, *site);
        } else if (may_come || page_->activity(slot).pair.load() == word) {
            is_complete = false;
        }
    }
    return is_complete;
}

// The link on which a rank may yet say something; none to those of this page.
Link* Group::voice_of(int rank, const Pairs::Lane* lane) const noexcept {
    if (slot_of(rank) >= 0) return nullptr;
    if (lane != nullptr) {
        return rank == lane->world_peer ? pairs_->lane(lane->peer, true).link.get() : nullptr;
    }
    const auto found = std::find(members_.begin(), members_.end(), rank);
    if (found == members_.end() || team_->links() == nullptr) return nullptr;
    return team_->links()->link_to(static_cast<int>(found - members_.begin()));
}

bool Group::find_sites_afar(std::string& text, Pairs::Lane* lane) {
    bool is_complete = true;
    for (const int rank : site_gaps(text)) {
        Link* link = voice_of(rank, lane);
        if (link == nullptr) continue;
        const auto words = lane == nullptr ? link->hear_last_words(epoch_) : pairs_->hear(*lane);
        if (words) {
            fill_site_gap(text, rank, words->site);
        } else {
            is_complete = false;
        }
    }
    return is_complete;
}

}  // namespace phalanx
