// Package capture writes the packets of an interface as a pcapng file, while they pass.
//
// # Theory of operation
//
// [Run] gives each producer of an interface (each direction of each lane, and the slow path) a
// recorder (package record), whose ring holds copies until Run writes them. The data path never
// waits for Run: a packet that finds its ring full is counted and left out of the capture, but
// still forwarded. Run merges the rings by time, and holds a record back for [settle], because an
// answer can be recorded before the send that it answers. The recorders belong to the
// interface, not to its queue pair, so a capture continues while recovery replaces that.
//
// # Limits
//
// The copies of a capture take at most [maxBytes], their descriptions about half as much again;
// [MaxCaptures] bounds the captures of a daemon. A filter has at most [maxInstructions], and no
// loops. A recorder may outlive Run until the batch under way ends.
//
// # The file
//
// Each level is an interface of the file. Each packet has its direction, and says how many
// were lost before it. The last blocks, one for each level, have the totals: received counts
// the packets that the filter accepted, and dropped those among them that were lost.
package capture
