/* Assertions that stay in release builds.
 *
 * must(cond) states an invariant of our own code: argument rules, results, agreement between two structures. When it
 * does not hold the process stops with the place and the condition (exit by SIGABRT): it never goes on and corrupts.
 * Errors of the outside world (a client, a disk, a peer) are not assertions: they are handled and answered. */
#ifndef QUEEN_BASE_MUST_H
#define QUEEN_BASE_MUST_H

__attribute__((noreturn, cold)) void must_fail(const char *file, int line, const char *condition);

#define must(cond) ((cond) ? (void)0 : must_fail(__FILE__, __LINE__, #cond))

#endif
