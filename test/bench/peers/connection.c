/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  A connection, its buffers, and the clock.
 *
 * IDENTIFICATION
 *	  test/bench/peers/connection.c
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "peers.h"

/* End the program with a message. */
void
fail(const char *format,...)
{
	va_list		arguments;

	fputs("error: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	/* Other threads may be at work, which an orderly end would disturb. */
	_exit(1);
}

Time
now_monotonic(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (Time) ts.tv_sec * SEC + ts.tv_nsec / 1000;
}

void
connection_init(Connection *c, const Peer *peer, int number)
{
	memset(c, 0, sizeof(*c));
	c->peer = peer;
	c->address = options.address;
	c->number = number;
	c->fd = -1;
	c->whole = c;
	c->random = UINT64_C(0x9E3779B97F4A7C15) * (number + 1);
	snprintf(c->owner, sizeof(c->owner), "%d", 2000000000 + number);
}

/* A path is that of a Unix socket. */
void
connection_connect(Connection *c)
{
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	struct sockaddr_in loopback = {.sin_family = AF_INET};
	struct sockaddr *address = (struct sockaddr *) &loopback;
	socklen_t	length = sizeof(loopback);
	int			one = 1;

	if (c->address[0] == '/')
	{
		if (strlen(c->address) >= sizeof(local.sun_path))
			fail("the path of the socket is too long");
		strcpy(local.sun_path, c->address);
		address = (struct sockaddr *) &local;
		length = sizeof(local);
	}
	else
	{
		loopback.sin_port = htons(atoi(c->address));
		loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	}
	c->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, address, length) != 0)
		fail("cannot connect to %s: %s", c->address, strerror(errno));
	if (address->sa_family == AF_INET)
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void
connection_name(Connection *c, const char *name)
{
	snprintf(c->name, sizeof(c->name), "%s", name);
}

/* xorshift64: each connection has a sequence of its own. */
uint64_t
connection_random(Connection *c)
{
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	return c->random;
}

/* 13 digits, as the names that pgbench chooses. */
void
connection_random_name(Connection *c)
{
	snprintf(c->name, sizeof(c->name), "%lld",
			 1000000000000LL + (long long) (connection_random(c) % options.names) + 1);
}

/* ---- what is to be sent ---- */

void
put_bytes(Connection *c, const void *bytes, size_t length)
{
	if (c->out_length + length > OUT_SIZE)
		fail("a request is too long");
	memcpy(c->out + c->out_length, bytes, length);
	c->out_length += length;
}

void
put_string(Connection *c, const char *string)
{
	put_bytes(c, string, strlen(string));
}

/* An integer of so many bytes, the highest first, where something stands. */
void
set_int(Connection *c, size_t offset, int64_t value, int length)
{
	for (int i = length - 1; i >= 0; i--, value >>= 8)
		c->out[offset + i] = (char) (value & 0xFF);
}

void
put_int(Connection *c, int64_t value, int length)
{
	size_t		offset = c->out_length;

	put_bytes(c, &value, length);
	set_int(c, offset, value, length);
}

void
connection_send(Connection *c)
{
	size_t		sent = 0;

	for (int i = 0; i < c->n_parts; i++)
		connection_send(&c->parts[i]);
	while (sent < c->out_length)
	{
		ssize_t		n = send(c->fd, c->out + sent, c->out_length - sent, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			fail("%s: cannot send: %s", c->peer->name, strerror(errno));
		sent += n > 0 ? n : 0;
	}
	c->out_length = 0;
}

/* ---- what arrives ---- */

int64_t
get_int(const char *from, int length)
{
	uint64_t	value = 0;

	for (int i = 0; i < length; i++)
		value = value << 8 | (unsigned char) from[i];
	if (length == 4)
		return (int32_t) value;
	return (int64_t) value;
}

/* Take in what is there; false if nothing is. */
bool
connection_receive(Connection *c)
{
	ssize_t		n;

	if (c->in_length == IN_SIZE)
		fail("%s: an answer is too long", c->peer->name);
	n = recv(c->fd, c->in + c->in_length, IN_SIZE - c->in_length, MSG_DONTWAIT);
	if (n == 0)
		fail("%s: the server has closed the connection", c->peer->name);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		fail("%s: cannot receive: %s", c->peer->name, strerror(errno));
	if (n > 0)
		c->in_length += n;
	return n > 0;
}

/* Done with the first bytes. */
void
connection_consume(Connection *c, size_t length)
{
	c->in_length -= length;
	if (c->in_length > 0)
		memmove(c->in, c->in + length, c->in_length);
}

/* Sleep until something has arrived; false if it is too late for that. */
bool
connection_wait(Connection *c, Time until)
{
	Connection *parts = c->n_parts > 0 ? c->parts : c;
	int			n_parts = c->n_parts > 0 ? c->n_parts : 1;
	struct pollfd fds[MOST_PARTS];
	Time		span = until - now_monotonic();
	struct timespec timeout = {span / SEC, span % SEC * 1000};
	bool		received = false;

	for (int i = 0; i < n_parts; i++)
	{
		fds[i].fd = parts[i].fd;
		fds[i].events = POLLIN;
	}
	if (span <= 0 || ppoll(fds, n_parts, &timeout, NULL) <= 0)
		return false;
	for (int i = 0; i < n_parts; i++)
		received |= fds[i].revents != 0 && connection_receive(&parts[i]);
	return received;
}

/* Wait for the answer to what was sent. */
Answer
connection_answer(Connection *c)
{
	Time		until = now_monotonic() + PATIENCE;
	Answer		answer;

	while ((answer = c->peer->take(c)) == ANSWER_NONE)
	{
		if (!connection_wait(c, until) && now_monotonic() >= until)
			fail("%s: no answer in %d s", c->peer->name, (int) (PATIENCE / SEC));
	}
	return answer;
}

Answer
connection_call(Connection *c)
{
	connection_send(c);
	return connection_answer(c);
}

void
connection_close(Connection *c)
{
	c->peer->close(c);
	if (c->fd >= 0)
		close(c->fd);
}
