/* The command line of a verb made of several commands: `queen VERB COMMAND WORD... [--option [VALUE]]...`.
 *
 * Options may stand anywhere behind the command; `--name=value` is taken too, and what follows `--` are words. A word may
 * begin with '-' and a digit, so that numbers need no care. Every command also takes --server and --retries, which are put
 * into the verb. Errors are said on stderr. Texts belong to argv. Not thread-safe. */
#ifndef QUEEN_CLI_WORDS_H
#define QUEEN_CLI_WORDS_H

#include "cli/verb.h"

enum {
    WORDS_MAX = 256,
    WORDS_OPTIONS_MAX = 16,
};

struct words_command {
    const char *name;
    unsigned bit;
    uint32_t least, most; /* words behind the command, at most WORDS_MAX */
    const char *usage;    /* of the words: "NS KEY [VALUE]" */
};

struct words_option {
    const char *name; /* without the dashes */
    bool flag;        /* takes no value */
    unsigned commands;
};

struct words {
    const struct words_command *command;
    uint32_t count;
    const char *word[WORDS_MAX];
    const char *value[WORDS_OPTIONS_MAX]; /* by place in the table of options; NULL: not given; a flag: "" */
};

struct words_table {
    const char *help;
    const struct words_command *commands;
    size_t command_count;
    const struct words_option *options;
    size_t option_count;
};

/* Returns -1 to go on, else the exit code: help was printed, or the command line is wrong. */
int words_read(struct words *w, struct verb *v, const struct words_table *t, int argc, char **argv);

#endif
