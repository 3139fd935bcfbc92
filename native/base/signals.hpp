// Threads of ours take no signals. Knows nothing of what the threads do.
#pragma once

#include <pthread.h>

#include <csignal>

namespace phalanx {

// While it lives, threads that are started here block every signal: those are for the program's
// own threads. The ones of a fault stay with whoever made it.
class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t set;
        sigfillset(&set);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
            sigdelset(&set, fault);
        }
        ::pthread_sigmask(SIG_SETMASK, &set, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

}  // namespace phalanx
