#include "net/lookup.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

/* Held by the thread and by the loop's side (its task, or who cancels it), freed by the last. `lock` guards the flags by which the two find
 * out about each other; the thread posts under it, so whoever has had it after `posted` knows the thread to be done with the loop. */
struct lookup {
    struct loop_task task;
    struct loop *loop;
    void (*found)(void *ctx, const struct lookup_address *addresses, uint32_t count, const char *why);
    void *ctx;
    char *host;
    uint16_t port;
    atomic_int holders;
    pthread_mutex_t lock;
    bool cancelled, posted;
    uint32_t count;
    int code; /* of getaddrinfo */
    struct lookup_address addresses[LOOKUP_ADDRESSES_MAX];
};

static void lookup_let_go(struct lookup *l, int holds)
{
    if (atomic_fetch_sub(&l->holders, holds) > holds) return;
    pthread_mutex_destroy(&l->lock);
    free(l->host);
    free(l);
}

static int ask(const char *host, uint16_t port, int flags, struct lookup_address *out, uint32_t max, uint32_t *count)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    *count = 0;
    int code = getaddrinfo(host, service, &hints, &list);
    if (code != 0) return code;
    for (struct addrinfo *a = list; a != NULL && *count < max; a = a->ai_next) {
        if (a->ai_addrlen > sizeof out->at) continue;
        memcpy(&out[*count].at, a->ai_addr, a->ai_addrlen);
        out[(*count)++].len = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return 0;
}

bool lookup_numeric(const char *host, uint16_t port, struct lookup_address *out)
{
    uint32_t count;
    return ask(host, port, AI_NUMERICHOST, out, 1, &count) == 0 && count == 1;
}

static void lookup_tell(struct loop_task *task)
{
    struct lookup *l = (struct lookup *)(void *)task;
    pthread_mutex_lock(&l->lock);
    bool cancelled = l->cancelled;
    pthread_mutex_unlock(&l->lock);
    if (!cancelled) l->found(l->ctx, l->addresses, l->count, l->code == 0 ? "no address" : gai_strerror(l->code));
    lookup_let_go(l, 1);
}

static void *lookup_thread(void *arg)
{
    struct lookup *l = arg;
    l->code = ask(l->host, l->port, 0, l->addresses, LOOKUP_ADDRESSES_MAX, &l->count);
    pthread_mutex_lock(&l->lock);
    bool cancelled = l->cancelled;
    l->posted = true;
    if (!cancelled) loop_post(l->loop, &l->task);
    pthread_mutex_unlock(&l->lock);
    lookup_let_go(l, cancelled ? 2 : 1); /* also for the task that will not be */
    return NULL;
}

struct lookup *lookup_start(struct loop *loop, const char *host, uint16_t port,
                            void (*found)(void *ctx, const struct lookup_address *addresses, uint32_t count, const char *why),
                            void *ctx)
{
    struct lookup *l = calloc(1, sizeof *l);
    must(l != NULL);
    *l = (struct lookup){.task.run = lookup_tell, .loop = loop, .found = found, .ctx = ctx, .host = strdup(host), .port = port};
    must(l->host != NULL && pthread_mutex_init(&l->lock, NULL) == 0);
    pthread_t thread;
    atomic_init(&l->holders, 2);
    bool numeric = lookup_numeric(host, port, &l->addresses[0]);
    if (numeric) {
        l->count = 1;
    } else if (pthread_create(&thread, NULL, lookup_thread, l) == 0) {
        pthread_detach(thread);
        return l;
    } else {
        l->code = EAI_MEMORY;
    }
    atomic_store(&l->holders, 1);
    l->posted = true;
    loop_post(loop, &l->task);
    return l;
}

void lookup_cancel(struct lookup *l, bool loop_ended)
{
    pthread_mutex_lock(&l->lock);
    l->cancelled = true;
    bool mine = l->posted && loop_ended; /* the task will not run */
    pthread_mutex_unlock(&l->lock);
    if (mine) lookup_let_go(l, 1);
}
