#include "net/lookup.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

/* Three parties hold it one after another: the thread until it has the answer, then the loop's queue of tasks, then the task. `lock` guards
 * the two flags by which the thread and a cancel find out about each other. */
struct lookup {
    struct loop_task task;
    struct loop *loop;
    void (*found)(void *ctx, const struct lookup_address *addresses, uint32_t count, const char *why);
    void *ctx;
    char *host;
    uint16_t port;
    pthread_mutex_t lock;
    bool cancelled, posted;
    uint32_t count;
    int code; /* of getaddrinfo */
    struct lookup_address addresses[LOOKUP_ADDRESSES_MAX];
};

static void lookup_free(struct lookup *l)
{
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
    if (!l->cancelled) l->found(l->ctx, l->addresses, l->count, l->code == 0 ? "no address" : gai_strerror(l->code));
    lookup_free(l);
}

static void lookup_answered(struct lookup *l)
{
    pthread_mutex_lock(&l->lock);
    bool cancelled = l->cancelled;
    l->posted = true;
    if (!cancelled) loop_post(l->loop, &l->task);
    pthread_mutex_unlock(&l->lock);
    if (cancelled) lookup_free(l);
}

static void *lookup_thread(void *arg)
{
    struct lookup *l = arg;
    l->code = ask(l->host, l->port, 0, l->addresses, LOOKUP_ADDRESSES_MAX, &l->count);
    lookup_answered(l);
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
    if (lookup_numeric(host, port, &l->addresses[0])) {
        l->count = 1;
        l->posted = true;
        loop_post(loop, &l->task);
    } else if (pthread_create(&thread, NULL, lookup_thread, l) == 0) {
        pthread_detach(thread);
    } else {
        l->code = EAI_MEMORY;
        l->posted = true;
        loop_post(loop, &l->task);
    }
    return l;
}

void lookup_cancel(struct lookup *l, bool loop_ended)
{
    pthread_mutex_lock(&l->lock);
    l->cancelled = true;
    bool mine = l->posted && loop_ended;
    pthread_mutex_unlock(&l->lock);
    if (mine) lookup_free(l);
}
