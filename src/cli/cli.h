/* The verbs of `queen` but `serve`. Each takes its own argv (argv[0] is the verb), prints help on --help, and returns the
 * exit code of the process:
 *
 *   0  done            1  the command line is wrong (stderr says how it should be)
 *   3  the server did as asked and the answer is no: rolled back, a condition lost, nothing there (kv, txn, timers, lock, cluster)
 *   4  the server refused the call or at least one item      5  the server could not be reached, or went away
 *
 * Errors go to stderr and say what to do. Called once, on the main thread. */
#ifndef QUEEN_CLI_CLI_H
#define QUEEN_CLI_CLI_H

enum {
    CLI_OK = 0,
    CLI_USAGE = 1,
    CLI_NO = 3,
    CLI_REFUSED = 4,
    CLI_UNREACHABLE = 5,
};

int cli_push_main(int argc, char **argv);
int cli_pop_main(int argc, char **argv);
int cli_ack_main(int argc, char **argv);
int cli_txn_main(int argc, char **argv);
int cli_kv_main(int argc, char **argv);
int cli_timers_main(int argc, char **argv);
int cli_lock_main(int argc, char **argv);
int cli_cluster_main(int argc, char **argv);
int cli_backup_main(int argc, char **argv);
int cli_restore_main(int argc, char **argv);
int cli_inspect_main(int argc, char **argv);
int cli_bench_main(int argc, char **argv);

#endif
