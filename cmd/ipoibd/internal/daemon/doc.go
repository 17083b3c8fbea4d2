// Package daemon constructs the other rooms from a configuration, and ends them
// in order: interfaces before devices (children before their ports), the
// control socket last.
package daemon
