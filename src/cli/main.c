/* `queen`: picks the verb. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "http/serve.h"

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("queen " QUEEN_VERSION " (HTTP contract 2.0.x)");
    return CLI_OK;
}

static int help_main(int argc, char **argv);

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} VERBS[] = {
    {"serve", serve_main, "run a broker"},
    {"push", cli_push_main, "push messages: JSON lines in, one result a line out"},
    {"pop", cli_pop_main, "pop messages: one message a line out"},
    {"ack", cli_ack_main, "ack messages: lines as pop printed them in, one result a line out"},
    {"txn", cli_txn_main, "run a transaction: acks, pushes, KV, timers and positions, all or nothing"},
    {"kv", cli_kv_main, "key-value state: get, put, put-if-absent, delete, incr, list, namespaces"},
    {"timers", cli_timers_main, "messages for later: schedule, cancel, get, list, count"},
    {"lock", cli_lock_main, "locks and semaphores: acquire, renew, release, get"},
    {"cluster", cli_cluster_main, "the nodes of a cluster: status, members, add, promote, remove, address"},
    {"backup", cli_backup_main, "a backup of a node that goes on serving"},
    {"restore", cli_restore_main, "a data directory out of a backup"},
    {"inspect", cli_inspect_main, "what is in a data directory or a backup, and whether it is whole"},
    {"bench", cli_bench_main, "measure a broker"},
    {"version", version_main, "print the version"},
    {"help", help_main, "help on a verb: queen help VERB"},
};

enum { VERB_COUNT = sizeof VERBS / sizeof VERBS[0] };

static const struct verb *verb_find(const char *name)
{
    for (size_t i = 0; i < VERB_COUNT; i++) {
        if (strcmp(VERBS[i].name, name) == 0) return &VERBS[i];
    }
    return NULL;
}

static void usage_print(FILE *out)
{
    fputs("Usage: queen VERB [options]\n\nA transactional message broker.\n\n", out);
    for (size_t i = 0; i < VERB_COUNT; i++) fprintf(out, "  %-8s %s\n", VERBS[i].name, VERBS[i].help);
    fputs("\n`queen VERB --help` tells the options of a verb. A first round:\n\n"
          "  queen serve --data ./data &\n"
          "  echo '{\"hello\":\"world\"}' | queen push greetings\n"
          "  queen pop greetings | queen ack\n",
          out);
}

static int help_main(int argc, char **argv)
{
    if (argc < 2) {
        usage_print(stdout);
        return CLI_OK;
    }
    const struct verb *v = verb_find(argv[1]);
    if (v == NULL) {
        fprintf(stderr, "queen help: there is no verb %s\n\n", argv[1]);
        usage_print(stderr);
        return CLI_USAGE;
    }
    if (v->run == help_main || v->run == version_main) {
        printf("Usage: queen %s\n\n%s.\n", v->name, v->help);
        return CLI_OK;
    }
    char help[] = "--help";
    char *arguments[] = {argv[1], help, NULL};
    return v->run(2, arguments);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage_print(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) name = "version";
    const struct verb *v = verb_find(name);
    if (v == NULL) {
        fprintf(stderr, "queen: there is no verb %s\n\n", name);
        usage_print(stderr);
        return CLI_USAGE;
    }
    return v->run(argc - 1, argv + 1);
}
