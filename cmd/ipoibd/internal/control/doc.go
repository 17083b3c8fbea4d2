// Package control is the daemon's control socket: HTTP over a UNIX socket. Only root and the
// user of the daemon may use it, whatever the mode of the file: SO_PEERCRED identifies them.
//
//	GET  /v1/status                     state of devices and interfaces (docs/status.schema.json)
//	GET  /v1/events?since=N&follow=true the journal after entry N, one JSON object per
//	                                    line; with follow, new entries as they come
//	POST /v1/fault                      inject a fault: [FaultRequest]
//	POST /v1/reset                      reset a queue pair, its CQs or a device: [ResetRequest]
//	POST /v1/recover                    start again after a give-up: [RecoverRequest]
//	POST /v1/suspend                    close all devices until /v1/resume
//	POST /v1/resume                     open them again
//
// The answer to an order is the order itself, with the names that it left out. A refusal is
// {"error": "..."} with a status of 400 or above. Durations are numbers of seconds, times are
// RFC 3339.
//
// # Limits
//
// A connection carries one request and has 5 s to send it. A body may have 64 KiB and only
// known fields. There are at most 128 connections. Another one closes the oldest that neither
// follows events (at most 16 may) nor waits for an order (at most 64 may). A client has 5 s to
// read an answer, or a batch of events, before its connection is closed. So a client delays
// nothing but itself.
//
// # A new view of the state
//
// Every route reads the same plain data ([Daemon.Status]) and never waits for the owner of a
// device or an interface. Metrics, for example, need a route here and a function that prints
// [report.Counters], whose meanings docs/counters.md has.
//
// # End
//
// [Server.Close] ends the streams of followers, cancels the current orders and waits a second
// for their answers.
package control
