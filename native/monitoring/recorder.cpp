// See recorder.hpp.
#include "monitoring/recorder.hpp"

namespace phalanx {

Recording::Recording(TraceRing& ring, const Op& op, std::uint64_t tag, std::uint8_t algorithm,
                     int peer) noexcept
    : what_(static_cast<std::uint64_t>(op.kind) | static_cast<std::uint64_t>(algorithm) << 8 |
            static_cast<std::uint64_t>(op.dtype) << 16 |
            static_cast<std::uint64_t>(op.channel) << 24 |
            static_cast<std::uint64_t>(peer & 0xFFFF) << 40),
      entered_(steady_ns()),
      record_(
          ring.open({record_place(op.epoch, op.seq), op.nbytes(), tag, entered_, 0, 0, what_})) {}

void Recording::end(std::uint64_t what) noexcept {
    ended_ = steady_ns();
    has_ended_ = true;
    if (arrives_with_end_) arrived_ = ended_;
    if (record_ == nullptr) return;
    if (arrives_with_end_) record_->set(kRecordArrived, ended_);
    record_->set(kRecordEnded, ended_);
    record_->set(kRecordWhat, what);
    record_->close();
}

}  // namespace phalanx
