/*-------------------------------------------------------------------------
 *
 * process.h
 *	  What processes have in common: numbers, names, descriptors.
 *
 * IDENTIFICATION
 *	  src/cli/process.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef PROCESS_H
#define PROCESS_H

#include "cli.h"

extern uint64_t process_random(void);
extern char *process_owner(const char *prefix);
extern void process_fill_standard(void);
extern void process_detach(int keep);

#endif							/* PROCESS_H */
