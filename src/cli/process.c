/*-------------------------------------------------------------------------
 *
 * process.c
 *	  What processes have in common: numbers, names, descriptors.
 *
 * IDENTIFICATION
 *	  src/cli/process.c
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "process.h"
#include "text.h"

/* Bytes that an owner may have, less what is put behind the prefix. */
#define LONGEST_PREFIX	200

/* A random number, from the kernel; without that, a number that differs. */
uint64_t
process_random(void)
{
	static uint64_t calls = 0;
	uint64_t	number = 0;
	int			fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, &number, sizeof(number)) != (ssize_t) sizeof(number))
		number = (uint64_t) clock_now() * UINT64_C(2654435761) + (uint64_t) getpid() + ++calls;
	if (fd >= 0)
		close(fd);
	return number;
}

/*
 * A name for the owner of a lease that no other process, here or elsewhere, and
 * no other call has: the prefix (NULL: the host's name and the process id), and
 * a random number.
 */
char *
process_owner(const char *prefix)
{
	char		host[64] = "localhost";
	uint32_t	number = (uint32_t) process_random();

	if (prefix != NULL)
	{
		size_t		length = strlen(prefix);

		/* Not within a character. */
		if (length > LONGEST_PREFIX)
		{
			length = LONGEST_PREFIX;
			while (length > 0 && ((unsigned char) prefix[length] & 0xC0) == 0x80)
				length--;
		}
		return text_print("%.*s/%08" PRIx32, (int) length, prefix, number);
	}
	if (gethostname(host, sizeof(host)) == 0)
		host[sizeof(host) - 1] = '\0';
	return text_print("%s/%ld/%08" PRIx32, host, (long) getpid(), number);
}

/*
 * See to it that the first three descriptors are in use, so that no socket becomes
 * what messages are written to.  Who uses one that was closed gets an error
 * still, and a command that we execute finds it closed.
 */
void
process_fill_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
	{
		if (fcntl(fd, F_GETFD) < 0)
			(void) !open("/dev/null", ((fd == STDIN_FILENO) ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
	}
}

/*
 * Close all descriptors but one (negative: all), so that nobody who waits for the
 * end of a pipe waits for this process.  The first three lead nowhere from then on.
 */
void
process_detach(int keep)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int			nowhere;

	if (dir != NULL)
	{
		while ((entry = readdir(dir)) != NULL)
		{
			int			fd = atoi(entry->d_name);

			if (fd > STDERR_FILENO && fd != keep && fd != dirfd(dir))
				close(fd);
		}
		closedir(dir);
	}
	else
	{
		for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
		{
			if (fd != keep)
				close(fd);
		}
	}

	nowhere = open("/dev/null", O_RDWR);
	for (int fd = STDIN_FILENO; nowhere >= 0 && fd <= STDERR_FILENO; fd++)
		dup2(nowhere, fd);
	if (nowhere > STDERR_FILENO)
		close(nowhere);
}
