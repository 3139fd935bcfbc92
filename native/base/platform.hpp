// Whose calls the engine makes: Linux's own, or those that all Unix systems have. The second are
// for macOS, and PHALANX_PORTABLE (a CMake option) takes them on Linux too, so that they are
// tested. For .cpp files of base/ alone: the tests link these compiled either way with one and the
// same rest.
#pragma once

#if defined(__linux__) && !defined(PHALANX_PORTABLE)
#define PHALANX_LINUX 1
#else
#define PHALANX_LINUX 0
#endif
