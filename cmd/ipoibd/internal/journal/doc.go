// Package journal keeps what the daemon's operator wants to read afterwards:
// the rungs that recoveries took and why, and how each ended.
//
// A [Journal] is a ring of the last [Size] entries. Each has a sequence number,
// counted from 1 without gaps, by which a reader goes on where it left off
// ([Journal.Since], [Journal.Wait]) and sees what it missed. Adding never blocks,
// whoever reads or does not. A [Tracker] turns the history of one ladder of
// qprecovery into entries: a rung when it is entered, and one at the end of a
// recovery with its duration and the outage.
//
// In JSON all durations are numbers of seconds ([Seconds]).
package journal
