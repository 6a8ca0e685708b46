/* The end of a process that must not go on: with a line on stderr and an exit code (docs/operate.md). Any thread. */
#ifndef QUEEN_BROKER_DIE_H
#define QUEEN_BROKER_DIE_H

__attribute__((noreturn)) void broker_die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
