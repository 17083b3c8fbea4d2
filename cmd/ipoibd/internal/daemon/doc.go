// Package daemon constructs the other rooms from a configuration, and ends them
// in order: interfaces before devices (children before their ports), the
// control socket last, all within 8 s.
//
// A start that fails takes away what it made, and leaves alone what was there
// before. A running daemon goes on as long as one interface does: one that was
// deleted, or moved out of its reach, is shown as failed, with the reason.
package daemon
