/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  Capturing tasks, and giving them back.
 *
 * IDENTIFICATION
 *	  src/cli/capture.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include "conn.h"
#include "options.h"

/* Columns of the answer. */
enum
{
	CAPTURED_KEY, CAPTURED_TOKEN, CAPTURED_PAYLOAD, CAPTURED_PRIORITY, CAPTURED_ATTEMPTS,
	CAPTURED_STATE, CAPTURED_EXPIRES_AT
};

typedef enum CaptureVerdict
{
	CAPTURE_OURS,				/* see the connection's answer */
	CAPTURE_NONE,
	CAPTURE_SIGNALLED,			/* see "signal" */
	CAPTURE_FAILED				/* see the connection's error */
} CaptureVerdict;

extern CaptureVerdict capture_tasks(Conn *conn, const Options *options, const char *queue,
									int *signal);
extern void capture_give_back(Conn *conn, const char *queue);

#endif							/* CAPTURE_H */
