// Package logline keeps the log from holding the daemon up. Whoever reads the log
// may stall: its disk may sit behind the very HCA that is being reset (R17), and a
// pipe that nobody reads is full soon. So lines are queued, and a goroutine of
// their own writes them; what finds the queue full is lost, counted, and told of
// once lines are taken again.
package logline
