/*-------------------------------------------------------------------------
 *
 * etcd.c
 *	  etcd: transactions on its keys, and its lock service, over gRPC.
 *
 * NOTES
 *	  As etcd's own client does, a session has one lease, and its keys go with
 *	  it.  Acquire is a transaction that puts the key if there is none, release
 *	  one that deletes it if the value is this owner's.  The hand-off is that of
 *	  the lock service (v3lock), which waits in the server.
 *
 *	  gRPC is HTTP/2 (RFC 9113) with a message in protocol buffers in each
 *	  direction.  What little of it a client needs that has one request at a
 *	  time: the names of the headers are sent as they stand, without Huffman's
 *	  code and without the table (RFC 7541), and those of the answer are not
 *	  read, for the message tells enough.  The window for data from the server
 *	  is made so large at the beginning that a run does not exhaust it.
 *
 *	  The fields are those of etcd's api/etcdserverpb/rpc.proto.
 *
 * IDENTIFICATION
 *	  test/bench/peers/etcd.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "peers.h"

#define FRAME_HEAD	9
#define GRPC_HEAD	5			/* compressed or not, and the length */

/* types of frames */
#define DATA			0
#define HEADERS			1
#define RST_STREAM		3
#define SETTINGS		4
#define PING			6
#define GOAWAY			7
#define WINDOW_UPDATE	8

/* flags */
#define END_STREAM	1			/* of DATA and HEADERS */
#define ACK			1			/* of SETTINGS and PING */
#define END_HEADERS	4

#define FIRST_WINDOW	65535
#define LARGEST_WINDOW	0x7FFFFFFF

/*
 * The watch of the one that waits begins in the past, and etcd looks only every
 * 100 ms whether such a watch has caught up.  A lock that is released before
 * that is handed over late.  (syncWatchersLoop in mvcc/watchable_store.go)
 */
#define SETTLE		110			/* ms */

enum
{
	LEASE_GRANT,
	LEASE_REVOKE,
	TXN,
	RANGE,
	LOCK	   ,
				UNLOCK,
};

static const char *const paths[] = {
	[LEASE_GRANT] = "/etcdserverpb.Lease/LeaseGrant",
	[LEASE_REVOKE] = "/etcdserverpb.Lease/LeaseRevoke",
	[TXN] = "/etcdserverpb.KV/Txn",
	[RANGE] = "/etcdserverpb.KV/Range",
	[LOCK] = "/v3lockpb.Lock/Lock",
	[UNLOCK] = "/v3lockpb.Lock/Unlock",
};

/* ---- protocol buffers ---- */

typedef struct Message
{
	char		bytes[512];
	size_t		length;
} Message;

static void
add_byte(Message *message, unsigned char byte)
{
	if (message->length == sizeof(message->bytes))
		fail("etcd: a request is too long");
	message->bytes[message->length++] = (char) byte;
}

static void
add_varint(Message *message, uint64_t value)
{
	for (; value > 0x7F; value >>= 7)
		add_byte(message, 0x80 | (value & 0x7F));
	add_byte(message, value);
}

static void
add_number(Message *message, int field, uint64_t value)
{
	add_varint(message, field << 3);
	add_varint(message, value);
}

static void
add_bytes(Message *message, int field, const char *bytes, size_t length)
{
	add_varint(message, field << 3 | 2);
	add_varint(message, length);
	for (size_t i = 0; i < length; i++)
		add_byte(message, bytes[i]);
}

static void
add_text(Message *message, int field, const char *text)
{
	add_bytes(message, field, text, strlen(text));
}

static void
add_message(Message *message, int field, const Message *part)
{
	add_bytes(message, field, part->bytes, part->length);
}

/* Read a number and go beyond it. */
static uint64_t
read_varint(const char **at, const char *end)
{
	uint64_t	value = 0;

	for (int shift = 0; *at < end && shift < 64; shift += 7)
	{
		unsigned char byte = *(*at)++;

		value |= (uint64_t) (byte & 0x7F) << shift;
		if (byte < 0x80)
			break;
	}
	return value;
}

/*
 * A field of the answer: its number, or the length of its bytes.  0 if it is
 * not there, as protocol buffers leave out what is zero.
 */
static uint64_t
find_field(const Connection *c, int wanted, const char **bytes)
{
	const char *at = c->text + GRPC_HEAD;
	const char *end = c->text + c->text_length;

	while (at < end)
	{
		uint64_t	key = read_varint(&at, end);
		uint64_t	value = read_varint(&at, end);

		if ((key & 7) != 0 && (key & 7) != 2)
			fail("etcd: an answer that is not understood");
		if (bytes != NULL)
			*bytes = at;
		if ((int) (key >> 3) == wanted)
			return value;
		if ((key & 7) == 2)
			at += value;
	}
	return 0;
}

/* ---- HTTP/2 ---- */

static size_t
begin_frame(Connection *c, int type, int flags, uint32_t stream)
{
	size_t		begin = c->out_length;

	put_int(c, 0, 3);
	put_int(c, type, 1);
	put_int(c, flags, 1);
	put_int(c, stream, 4);
	return begin;
}

static void
end_frame(Connection *c, size_t begin)
{
	set_int(c, begin, c->out_length - begin - FRAME_HEAD, 3);
}

/* A text of less than 127 bytes. */
static void
put_text(Connection *c, const char *text)
{
	put_int(c, strlen(text), 1);
	put_string(c, text);
}

/* The first bytes are indices into the static table of RFC 7541, appendix A. */
static void
put_headers(Connection *c, const char *path)
{
	put_int(c, 0x83, 1);		/* :method POST */
	put_int(c, 0x86, 1);		/* :scheme http */
	put_int(c, 0x04, 1);		/* :path */
	put_text(c, path);
	put_int(c, 0x01, 1);		/* :authority */
	put_text(c, "localhost");
	put_int(c, 0x0F10, 2);		/* content-type */
	put_text(c, "application/grpc");
}

static void
put_request(Connection *c, int method, const Message *message)
{
	size_t		begin;

	c->stream += 2;				/* odd ones are the client's */
	c->request = method;
	c->text_length = 0;
	begin = begin_frame(c, HEADERS, END_HEADERS, c->stream);
	put_headers(c, paths[method]);
	end_frame(c, begin);
	begin = begin_frame(c, DATA, END_STREAM, c->stream);
	put_int(c, 0, 1);
	put_int(c, message->length, 4);
	put_bytes(c, message->bytes, message->length);
	end_frame(c, begin);
}

static void
put_preface(Connection *c)
{
	size_t		begin;

	put_string(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
	end_frame(c, begin_frame(c, SETTINGS, 0, 0));
	begin = begin_frame(c, WINDOW_UPDATE, 0, 0);
	put_int(c, LARGEST_WINDOW - FIRST_WINDOW, 4);
	end_frame(c, begin);
}

static Answer
read_answer(Connection *c)
{
	const char *bytes;

	if (c->text_length < GRPC_HEAD)
		fail("etcd: %s was refused", paths[c->request]);
	switch (c->request)
	{
		case LEASE_GRANT:
			c->number_answered = find_field(c, 2, NULL);
			return ANSWER_YES;
		case TXN:
			return find_field(c, 2, NULL) != 0 ? ANSWER_YES : ANSWER_NO;
		case RANGE:
			c->number_answered = find_field(c, 4, NULL);
			return ANSWER_YES;
			case LOCK:
			{
				size_t		length = find_field(c, 2, &bytes);

				if			(length == 0 || length >= sizeof(c->node))
					fail("etcd: a lock without a key");
							memcpy(c->node, bytes, length);
							c->node[length] = '\0';
			}
						return ANSWER_YES;

		default:
			return ANSWER_YES;
	}
}

static void
keep_data(Connection *c, const char *payload, size_t length)
{
	if (c->text_length + length > sizeof(c->text))
		fail("etcd: an answer is too long");
	memcpy(c->text + c->text_length, payload, length);
	c->text_length += length;
}

/* The server's ping is sent back, its settings are acknowledged. */
static void
acknowledge(Connection *c, int type, const char *payload, size_t length)
{
	size_t		begin = begin_frame(c, type, ACK, 0);

	if (type == PING)
		put_bytes(c, payload, length);
	end_frame(c, begin);
	connection_send(c);
}

static Answer
take(Connection *c)
{
	bool		ended = false;

	while (!ended && c->in_length >= FRAME_HEAD)
	{
		size_t		length = get_int(c->in, 3);
		int			type = c->in[3];
		int			flags = c->in[4];
		uint32_t	stream = get_int(c->in + 5, 4);
		const char *payload = c->in + FRAME_HEAD;

		if (FRAME_HEAD + length > IN_SIZE)
			fail("etcd: a frame is too long");
		if (FRAME_HEAD + length > c->in_length)
			break;
		if (type == GOAWAY || type == RST_STREAM)
			fail("etcd: the server gives up");
		if ((type == SETTINGS || type == PING) && (flags & ACK) == 0)
			acknowledge(c, type, payload, length);
		if (type == DATA && stream == c->stream)
			keep_data(c, payload, length);
		ended = (type == DATA || type == HEADERS) && stream == c->stream && (flags & END_STREAM) != 0;
		connection_consume(c, FRAME_HEAD + length);
	}
	return ended ? read_answer(c) : ANSWER_NONE;
}

/* ---- the lock ---- */

static void
open_session(Connection *c)
{
	Message		request = {.length = 0};

	connection_connect(c);
	put_preface(c);
	c->stream = (uint32_t) -1;
	add_number(&request, 1, TTL_SECONDS);
	put_request(c, LEASE_GRANT, &request);
	connection_call(c);
	c->lease = c->number_answered;
	if (c->lease == 0)
		fail("etcd: no lease was granted");
}

/* Compare the key, and if so, do this. */
static void
put_transaction(Connection *c, const Message *compare, int field, const Message *operation)
{
	Message		request = {.length = 0};
	Message		success = {.length = 0};

	add_message(&success, field, operation);
	add_message(&request, 1, compare);
	add_message(&request, 2, &success);
	put_request(c, TXN, &request);
}

static void
acquire(Connection *c)
{
	Message		compare = {.length = 0};
	Message		put = {.length = 0};

	add_number(&compare, 1, 0); /* equal */
	add_number(&compare, 2, 1); /* the revision that created it */
	add_text(&compare, 3, c->name);
	add_number(&compare, 5, 0); /* and none: there is no such key */
	add_text(&put, 1, c->name);
	add_text(&put, 2, c->owner);
	add_number(&put, 3, c->lease);
	put_transaction(c, &compare, 2, &put);
}

static void
release(Connection *c)
{
	Message		compare = {.length = 0};
	Message		delete = {.length = 0};

	add_number(&compare, 1, 0); /* equal */
	add_number(&compare, 2, 3); /* the value */
	add_text(&compare, 3, c->name);
	add_text(&compare, 7, c->owner);
	add_text(&delete, 1, c->name);
	put_transaction(c, &compare, 3, &delete);
}

/* Of all keys, since nothing else is there. */
static int64_t
count(Connection *c)
{
	Message		request = {.length = 0};

	add_bytes(&request, 1, "", 1);
	add_bytes(&request, 2, "", 1);
	add_number(&request, 9, 1); /* only the number of them */
	put_request(c, RANGE, &request);
	connection_call(c);
	return c->number_answered;
}

static void
close_session(Connection *c)
{
	Message		request = {.length = 0};

	add_number(&request, 1, c->lease);
	put_request(c, LEASE_REVOKE, &request);
	connection_call(c);
}

static void
put_lock(Connection *c)
{
	Message		request = {.length = 0};

	add_text(&request, 1, c->name);
	add_number(&request, 2, c->lease);
	put_request(c, LOCK, &request);
}

static void
handoff_begin(Connection *holder, Connection *next)
{
	(void) next;
	put_lock(holder);
	connection_call(holder);
}

static void
handoff_wait(Connection *next)
{
	put_lock(next);
	connection_send(next);
}

static void
handoff_release(Connection *holder)
{
	Message		request = {.length = 0};

	add_text(&request, 1, holder->node);
	put_request(holder, UNLOCK, &request);
	connection_send(holder);
}

static bool
handoff_got(Connection *next)
{
	return take(next) == ANSWER_YES;
}

static void
handoff_end(Connection *holder, Connection *next)
{
	(void) next;
	connection_answer(holder);
}

const Peer	etcd_peer = {
	.name = "etcd",
	.owner_matters = true,
	.open = open_session,
	.acquire = acquire,
	.release = release,
	.take = take,
	.count = count,
	.close = close_session,
	.fall_asleep = SETTLE,
	.handoff_begin = handoff_begin,
	.handoff_wait = handoff_wait,
	.handoff_release = handoff_release,
	.handoff_got = handoff_got,
	.handoff_end = handoff_end,
};
