/* `queen serve`: reads the configuration, opens the broker, runs the loops until SIGTERM or SIGINT.
 * argv[0] is the verb. Returns the exit code: 0 stopped gracefully, 1 configuration, 2 data unusable, 3 I/O failure. */
#ifndef QUEEN_HTTP_SERVE_H
#define QUEEN_HTTP_SERVE_H

int serve_main(int argc, char **argv);

#endif
