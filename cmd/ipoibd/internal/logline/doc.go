// Package logline keeps the log from holding the daemon up, and from flooding.
//
// Writer: the reader of the log may stall, since its disk may be behind the very
// HCA that is being reset (R17), and a pipe that is not read is full soon. So lines
// are queued, and a goroutine of their own writes them. A line that finds the queue
// full is lost and counted; the count is logged as soon as the reader goes on.
//
// Handler: a link that flaps, or a container that makes it flap, must not fill the
// disk. Each message passes in a burst and then at a low rate, and all messages
// together have a limit as well; the last line of a burst always appears.
package logline
