// Package control is the daemon's control socket: HTTP over a UNIX socket that
// only root and the user the daemon runs as may use, whatever the mode of the
// socket's file. The peer is known by SO_PEERCRED.
//
//	GET  /v1/status                     what there is, and how it is: [Status]
//	GET  /v1/events?since=N&follow=true the journal after entry N, a JSON object a
//	                                    line; with follow, on and on
//	POST /v1/fault                      inject a fault: [FaultRequest]
//	POST /v1/reset                      reset a queue pair, its CQs or a device: [ResetRequest]
//	POST /v1/recover                    start again after a give-up: [RecoverRequest]
//	POST /v1/suspend                    end the use of all devices, until
//	POST /v1/resume
//
// An order is answered with itself, the names that it left out filled in. A
// refusal is {"error": "..."} with a status of 400 or above. Durations are
// numbers of seconds, times are RFC 3339.
//
// # Limits
//
// A connection carries one request, and has 5 s to send it. Of a body 64 KiB are
// read, and no field that is not known. There are 128 connections at most: one
// more has the oldest closed that neither follows events, as 16 may, nor waits for
// an order to be carried out, as 64 may; more are refused. Each answer, and each
// batch that a follower is sent, has to be taken within 5 s, or the connection is
// cut. So a client holds up nothing but itself.
//
// # End
//
// [Server.Close] ends the followers' streams in order, cancels the orders under
// way and waits a second for their answers.
package control
