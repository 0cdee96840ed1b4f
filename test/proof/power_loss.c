/*-------------------------------------------------------------------------
 *
 * power_loss.c
 *	  A disk that forgets what was not synchronised, to be preloaded into a server.
 *
 * POWER_LOSS_DATA names the data directory and POWER_LOSS_DISK another one, which
 * begins as a copy of it: what would be found after a power cut.  A file gets
 * there what it has by fsync() and fdatasync(), and by nothing else.  To cut the
 * power, kill the server, and put the one directory in the place of the other.
 *
 * Names are on the disk at once, as with a file system that writes its journal
 * before it returns: rename(), unlink(), mkdir(), and a file that gets shorter.
 * A new file is not, up to the first time that it is synchronised.
 *
 * Writes need not be watched: a process that synchronises a file has all of it
 * copied, also what others wrote.  What is written meanwhile may be on the disk or not, as on a
 * real one.  One lock, on POWER_LOSS_DISK.lock, is held over each of these calls,
 * so that no older copy overtakes a newer one, and no file changes its name
 * meanwhile.  It goes with a process that is killed.
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK	65536

static char data[PATH_MAX];		/* empty: nothing is watched */
static char disk[PATH_MAX];

static int	(*real_rename) (const char *from, const char *to);
static int	(*real_link) (const char *from, const char *to);
static int	(*real_unlink) (const char *path);
static int	(*real_mkdir) (const char *path, mode_t mode);
static int	(*real_rmdir) (const char *path);
static int	(*real_ftruncate) (int fd, off_t size);
static int	(*real_truncate) (const char *path, off_t size);

static void
give_up(const char *what)
{
	fprintf(stderr, "power_loss: %s: %s\n", what, strerror(errno));
	abort();
}

static void *
find(const char *name)
{
	void	   *function = dlsym(RTLD_NEXT, name);

	if (function == NULL)
		give_up(name);
	return function;
}

__attribute__((constructor))
static void
begin(void)
{
	/* The server overwrites its environment. */
	if (getenv("POWER_LOSS_DATA") != NULL && getenv("POWER_LOSS_DISK") != NULL)
	{
		snprintf(data, sizeof(data), "%s", getenv("POWER_LOSS_DATA"));
		snprintf(disk, sizeof(disk), "%s", getenv("POWER_LOSS_DISK"));
	}
	real_rename = find("rename");
	real_link = find("link");
	real_unlink = find("unlink");
	real_mkdir = find("mkdir");
	real_rmdir = find("rmdir");
	real_ftruncate = find("ftruncate");
	real_truncate = find("truncate");
}

/* Where a path is on the disk; 0 if it is elsewhere. */
static int
find_on_disk(const char *path, char *on_disk)
{
	char		absolute[PATH_MAX];
	size_t		length = strlen(data);

	if (length == 0)
		return 0;
	if (path[0] != '/')
	{
		if (getcwd(absolute, sizeof(absolute)) == NULL ||
			strlen(absolute) + strlen(path) + 2 > sizeof(absolute))
			return 0;
		strcat(absolute, "/");
		strcat(absolute, path);
		path = absolute;
	}
	if (strncmp(path, data, length) != 0 || path[length] != '/')
		return 0;
	if (snprintf(on_disk, PATH_MAX, "%s%s", disk, path + length) >= PATH_MAX)
		give_up(path);
	return 1;
}

static int
find_file_on_disk(int fd, char *on_disk)
{
	char		link[64];
	char		path[PATH_MAX];
	ssize_t		length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return 0;
	path[length] = '\0';
	if (strstr(path, " (deleted)") != NULL)
		return 0;
	return find_on_disk(path, on_disk);
}

static int
lock_disk(void)
{
	char		path[PATH_MAX + 8];
	int			lock;

	snprintf(path, sizeof(path), "%s.lock", disk);
	lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0)
		give_up(path);
	while (flock(lock, LOCK_EX) != 0)
		if (errno != EINTR)
			give_up(path);
	return lock;
}

/* Make a file on the disk what it is now; those blocks that differ are written. */
static void
copy_file(int from, const char *on_disk)
{
	static char now[CHUNK];
	static char then[CHUNK];
	int			to = open(on_disk, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	off_t		at = 0;
	ssize_t		length;

	if (to < 0)
		give_up(on_disk);
	while ((length = pread(from, now, CHUNK, at)) > 0)
	{
		if (pread(to, then, length, at) != length || memcmp(now, then, length) != 0)
			if (pwrite(to, now, length, at) != length)
				give_up(on_disk);
		at += length;
	}
	if (length < 0 || real_ftruncate(to, at) != 0)
		give_up(on_disk);
	close(to);
}

/* Nothing has to reach the machine's own disk. */
static int
synchronize(int fd)
{
	struct stat status;
	char		on_disk[PATH_MAX];
	int			saved = errno;

	if (fstat(fd, &status) != 0)
		return -1;
	if (S_ISREG(status.st_mode) && data[0] != '\0')
	{
		int			lock = lock_disk();
		int			reader;
		char		link[64];

		if (find_file_on_disk(fd, on_disk))
		{
			/* It may be open for writing only. */
			snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
			reader = open(link, O_RDONLY | O_CLOEXEC);
			if (reader < 0)
				give_up(on_disk);
			copy_file(reader, on_disk);
			close(reader);
		}
		close(lock);
	}
	errno = saved;
	return 0;
}

int
fsync(int fd)
{
	return synchronize(fd);
}

int
fdatasync(int fd)
{
	return synchronize(fd);
}

/* What has never been synchronised is not there after the cut. */
static void
rename_on_disk(const char *from, const char *to)
{
	if (real_rename(from, to) != 0)
	{
		if (errno != ENOENT)
			give_up(to);
		real_unlink(to);
	}
}

int
rename(const char *from, const char *to)
{
	char		from_on_disk[PATH_MAX];
	char		to_on_disk[PATH_MAX];
	int			lock;
	int			result;
	int			saved;

	if (!find_on_disk(from, from_on_disk) || !find_on_disk(to, to_on_disk))
		return real_rename(from, to);
	lock = lock_disk();
	result = real_rename(from, to);
	saved = errno;
	if (result == 0)
		rename_on_disk(from_on_disk, to_on_disk);
	close(lock);
	errno = saved;
	return result;
}

int
link(const char *from, const char *to)
{
	char		from_on_disk[PATH_MAX];
	char		to_on_disk[PATH_MAX];
	int			lock;
	int			result;
	int			saved;

	if (!find_on_disk(from, from_on_disk) || !find_on_disk(to, to_on_disk))
		return real_link(from, to);
	lock = lock_disk();
	result = real_link(from, to);
	saved = errno;
	if (result == 0 && real_link(from_on_disk, to_on_disk) != 0 && errno != ENOENT)
		give_up(to_on_disk);
	close(lock);
	errno = saved;
	return result;
}

int
unlink(const char *path)
{
	char		on_disk[PATH_MAX];
	int			lock;
	int			result;
	int			saved;

	if (!find_on_disk(path, on_disk))
		return real_unlink(path);
	lock = lock_disk();
	result = real_unlink(path);
	saved = errno;
	if (result == 0)
		real_unlink(on_disk);
	close(lock);
	errno = saved;
	return result;
}

int
mkdir(const char *path, mode_t mode)
{
	char		on_disk[PATH_MAX];
	int			result = real_mkdir(path, mode);
	int			saved = errno;

	if (result == 0 && find_on_disk(path, on_disk))
		real_mkdir(on_disk, mode);
	errno = saved;
	return result;
}

int
rmdir(const char *path)
{
	char		on_disk[PATH_MAX];
	int			result = real_rmdir(path);
	int			saved = errno;

	if (result == 0 && find_on_disk(path, on_disk))
		real_rmdir(on_disk);
	errno = saved;
	return result;
}

/* A file gets longer by what is synchronised. */
static void
shorten_on_disk(const char *on_disk, off_t size)
{
	struct stat status;

	if (stat(on_disk, &status) == 0 && status.st_size > size &&
		real_truncate(on_disk, size) != 0)
		give_up(on_disk);
}

/* Set the size of a file, given by its path or, if that is NULL, open as "fd". */
static int
set_size(const char *path, int fd, off_t size, const char *on_disk)
{
	int			lock = lock_disk();
	int			result = (path != NULL) ? real_truncate(path, size) : real_ftruncate(fd, size);
	int			saved = errno;

	if (result == 0)
		shorten_on_disk(on_disk, size);
	close(lock);
	errno = saved;
	return result;
}

int
ftruncate(int fd, off_t size)
{
	char		on_disk[PATH_MAX];

	return find_file_on_disk(fd, on_disk) ? set_size(NULL, fd, size, on_disk) :
		real_ftruncate(fd, size);
}

int
truncate(const char *path, off_t size)
{
	char		on_disk[PATH_MAX];

	return find_on_disk(path, on_disk) ? set_size(path, -1, size, on_disk) :
		real_truncate(path, size);
}

int
ftruncate64(int fd, off64_t size)
{
	return ftruncate(fd, size);
}

int
truncate64(const char *path, off64_t size)
{
	return truncate(path, size);
}
