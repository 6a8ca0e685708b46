/* The handshake's messages. Pure but for the MACs.
 *
 *   dialler                                     accepter
 *   HELLO   {self, target, run, dial, nonce} ->
 *                                            <- ANSWER  {self, run, nonce}
 *   PROOF   {mac of hello and answer}        ->             the dialler knows the secret
 *                                            <- VERDICT {code, text, mac of hello, answer, code, text}     so does the accepter
 *   records, the first at once               ->             (wire.h; tagged with keys of both nonces)
 *
 * Who cannot prove the secret gets DENIED {code}, which proves nothing itself and is only logged. A dialler learns no MAC before it has
 * given its own. The MACs of both directions differ by their labels, so none can be sent back.
 *
 *   message   "QNET" | protocol u8 | type u8 | body_bytes u16 | body */
#ifndef QUEEN_NET_HELLO_H
#define QUEEN_NET_HELLO_H

#include "base/buf.h"
#include "net/net.h"
#include "net/seal.h"

enum {
    HELLO_HEAD = 8,
    HELLO_PROTOCOL = 1,
    HELLO_TEXT_MAX = 1000,
    HELLO_MESSAGE_MAX = HELLO_HEAD + 1 + HELLO_TEXT_MAX + SEAL_MAC
};

enum hello_type { HELLO_HELLO = 1, HELLO_ANSWER, HELLO_PROOF, HELLO_VERDICT, HELLO_DENIED };

enum hello_verdict {
    VERDICT_WELCOME,
    VERDICT_REFUSED, /* by the owner of the accepting node: the text is for the other's owner */
    VERDICT_WRONG,   /* cluster, node, or a connection of no use: the text is for the log */
};

enum hello_denial { DENIED_SECRET = 1, DENIED_PROTOCOL, DENIED_CROWDED };

struct hello {
    struct net_self self;
    uint64_t target; /* the node the dialler means to reach */
    uint64_t run;    /* random, of this net_open */
    uint64_t dial;   /* the run's connections to that peer, counted */
    uint8_t nonce[SEAL_NONCE];
};

struct answer {
    struct net_self self;
    uint64_t run;
    uint8_t nonce[SEAL_NONCE];
};

struct verdict {
    enum hello_verdict code;
    struct slice text;
    uint8_t mac[SEAL_MAC];
};

struct hello_message {
    enum hello_type type;
    struct slice whole, body; /* in the bytes read */
};

enum hello_status { HELLO_OK, HELLO_MORE, HELLO_BAD, HELLO_OTHER_PROTOCOL };

/* The message at the start of `in`. HELLO_MORE: it is not all there. */
enum hello_status hello_next(struct slice in, struct hello_message *out);
void hello_head(struct buf *b, enum hello_type type, size_t body_bytes);

void hello_write(struct buf *b, const struct hello *h);
bool hello_read(struct slice body, struct hello *out);
void answer_write(struct buf *b, const struct answer *a);
bool answer_read(struct slice body, struct answer *out);
void verdict_write(struct buf *b, const struct verdict *v);
bool verdict_read(struct slice body, struct verdict *out); /* the text stays in the body */

/* hello and answer: the whole messages as they went over the wire. */
void hello_proof(struct slice secret, struct slice hello, struct slice answer, uint8_t mac[SEAL_MAC]);
void hello_verdict_mac(struct slice secret, struct slice hello, struct slice answer, const struct verdict *v,
                       uint8_t mac[SEAL_MAC]);

#endif
