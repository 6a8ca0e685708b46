/* Named places where a test build can die. In a normal build crash_point() compiles to nothing. In a build with
 * QUEEN_CRASH_POINTS the environment variable QUEEN_CRASH_AT=name[:n] makes the n-th pass of that point (default the
 * first) end the process with SIGKILL, as a crash at that very instruction would. Thread-safe. */
#ifndef QUEEN_BASE_CRASH_POINT_H
#define QUEEN_BASE_CRASH_POINT_H

#ifdef QUEEN_CRASH_POINTS
void crash_point(const char *name);
#else
static inline void crash_point(const char *name)
{
    (void)name;
}
#endif

#endif
