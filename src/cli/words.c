#include "cli/words.h"

#include <stdio.h>

static const char SERVER[] = "server";
static const char RETRIES[] = "retries";

static const struct words_command *command_find(const struct words_table *t, const char *name)
{
    for (size_t i = 0; i < t->command_count; i++) {
        if (strcmp(t->commands[i].name, name) == 0) return &t->commands[i];
    }
    return NULL;
}

static bool name_is(const char *name, size_t len, const char *known)
{
    return strlen(known) == len && memcmp(name, known, len) == 0;
}

static bool common_set(struct verb *v, const char *name, const char *value)
{
    uint64_t n = 0;
    if (name == SERVER) {
        v->server = value;
        return true;
    }
    if (!verb_number(v, "--retries", value, 0, VERB_RETRIES_MAX, &n)) return false;
    v->retries = (uint32_t)n;
    return true;
}

/* One option at argv[*at]; moves on over its value. False: said on stderr. */
static bool option_take(struct words *w, struct verb *v, const struct words_table *t, int argc, char **argv, int *at)
{
    const char *name = argv[*at] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    const char *common = name_is(name, len, SERVER) ? SERVER : name_is(name, len, RETRIES) ? RETRIES : NULL;
    size_t i = 0;
    while (i < t->option_count && !name_is(name, len, t->options[i].name)) i++;
    if (common == NULL && (i == t->option_count || !(t->options[i].commands & w->command->bit))) {
        verb_say(v, "%s does not take --%.*s; see `queen %s --help`", w->command->name, (int)len, name, v->name);
        return false;
    }
    bool flag = common == NULL && t->options[i].flag;
    if (flag && value != NULL) {
        verb_say(v, "--%.*s takes no value", (int)len, name);
        return false;
    }
    if (!flag && value == NULL) {
        if (*at + 1 == argc) {
            verb_say(v, "--%.*s needs a value", (int)len, name);
            return false;
        }
        value = argv[++*at];
    }
    if (common != NULL) return common_set(v, common, value);
    w->value[i] = flag ? "" : value;
    return true;
}

static bool help_asked(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    }
    return false;
}

int words_read(struct words *w, struct verb *v, const struct words_table *t, int argc, char **argv)
{
    must(t->option_count <= WORDS_OPTIONS_MAX);
    *w = (struct words){0};
    if (help_asked(argc, argv)) {
        fputs(t->help, stdout);
        return CLI_OK;
    }
    w->command = argc < 2 ? NULL : command_find(t, argv[1]);
    if (w->command == NULL) {
        if (argc < 2) {
            verb_say(v, "which command? See `queen %s --help`", v->name);
        } else {
            verb_say(v, "there is no command %s; see `queen %s --help`", argv[1], v->name);
        }
        return CLI_USAGE;
    }
    must(w->command->most <= WORDS_MAX);
    bool plain = false; /* behind "--" */
    for (int i = 2; i < argc; i++) {
        const char *arg = argv[i];
        if (!plain && strcmp(arg, "--") == 0) {
            plain = true;
        } else if (!plain && strncmp(arg, "--", 2) == 0) {
            if (!option_take(w, v, t, argc, argv, &i)) return CLI_USAGE;
        } else if (!plain && arg[0] == '-' && arg[1] != 0 && (arg[1] < '0' || arg[1] > '9')) {
            verb_say(v, "there is no option %s; a word that begins with - goes behind --", arg);
            return CLI_USAGE;
        } else if (w->count == w->command->most) {
            verb_say(v, "unexpected argument %s: queen %s %s %s", arg, v->name, w->command->name, w->command->usage);
            return CLI_USAGE;
        } else {
            w->word[w->count++] = arg;
        }
    }
    if (w->count >= w->command->least) return -1;
    verb_say(v, "queen %s %s %s; see `queen %s --help`", v->name, w->command->name, w->command->usage, v->name);
    return CLI_USAGE;
}
