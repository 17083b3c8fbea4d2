// Package logline keeps the log from blocking the daemon, and from filling the disk.
//
// Writer: the reader of the log may stall. Its disk may be behind the very HCA that
// is being reset (R17), and a pipe that is not read soon fills up. So lines are queued,
// and a separate goroutine writes them. A line that finds the queue full is lost and
// counted; the count is logged as soon as the reader continues.
//
// Handler: a link that flaps, or a container that makes it flap, must not fill the
// disk. Each message may come in a burst and then at a low rate, and there is a limit
// for all messages together. The last line of a burst always appears.
package logline
