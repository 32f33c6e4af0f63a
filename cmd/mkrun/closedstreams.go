//go:build cgo

package main

/*
#include <fcntl.h>

// A program that is started with a standard stream closed gets /dev/null in its place from Go's runtime, so what it writes
// there is lost without a word. This runs before the runtime: reading finds nothing then, as there, but writing fails as the
// kernel has it (EBADF). A file that is opened has the lowest number that is free.
__attribute__((constructor)) static void keep_closed_streams_closed(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0)
			return;
}
*/
import "C"
