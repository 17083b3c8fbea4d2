// Package control is the daemon's control socket: HTTP over a UNIX socket that
// only root and the user the daemon runs as may use, whatever the mode of the
// socket's file. The peer is known by SO_PEERCRED. Every answer is JSON; a
// refusal is {"error": "..."} with a status of 400 or above.
package control
