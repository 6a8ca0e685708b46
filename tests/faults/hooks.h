/* hooks.h - shared by the files that replace libc functions. The only symbols the library shows are those. */
#ifndef QUEEN_TESTS_FAULT_HOOKS_H
#define QUEEN_TESTS_FAULT_HOOKS_H

#define HOOK __attribute__((visibility("default")))

/* libc's checked variants, which headers declare only under _FORTIFY_SOURCE */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir_fd, const char *path, int flags);
int __openat64_2(int dir_fd, const char *path, int flags);

#endif
