// Package control is the daemon's control socket: HTTP over a UNIX socket. Only root and the
// user of the daemon may use it, whatever the mode of the file: SO_PEERCRED identifies them.
//
//	GET  /v1/status                     state of devices and interfaces (docs/status.schema.json)
//	GET  /v1/events?since=N&follow=true the journal after entry N, one JSON object per
//	                                    line; with follow, new entries as they are added
//	GET  /livez, /readyz, /metrics      probes and metrics: package metrics
//	POST /v1/capture                    a pcapng file, written as packets pass: [capture.Request]
//	POST /v1/hand-over                  upgrade the connection, and hand everything over to
//	                                    another process of the same user: package handover
//	POST /v1/fault                      inject a fault: [FaultRequest]
//	POST /v1/reset                      reset a queue pair, its CQs or a device: [ResetRequest]
//	POST /v1/ping                       send an echo request to a peer: [PingRequest]
//	POST /v1/recover                    retry a device that was given up: [RecoverRequest]
//	POST /v1/suspend                    close all devices until /v1/resume: [SuspendRequest]
//	POST /v1/resume                     open them again: [ResumeRequest]
//	POST /v1/reload                     apply the configuration file: [ReloadRequest]
//	POST /v1/interfaces                 add an interface at run time: [AddRequest]
//	POST /v1/interfaces/remove          remove it again: [RemoveRequest]
//
// The last three answer with what was done; a capture, with the file; any other POST, with the
// request itself, with omitted names filled in. A refusal is {"error": "..."} with a status of 400 or above.
// Durations are in seconds, times in RFC 3339.
//
// # Limits
//
// A connection carries one request, which must arrive within 5 s. A body is limited to 64 KiB
// and to known fields. At most 16 clients may follow events, at most 4 may capture, and at most
// 64 may wait for another POST. There are at most 128 other connections: a further one closes the
// oldest of them. A client has
// 5 s to read an answer, or a batch of events, before its connection is closed; the
// client of a capture has 30 s, and loses packets in the meantime. So a slow client delays only itself.
//
// # Adding a view of the state
//
// Every GET reads the same plain data (the field Status of [Daemon]) and never waits for the goroutine that
// owns a device or an interface.
//
// # End
//
// [Server.Close] ends the streams of followers, cancels the requests in progress and waits up
// to a second for their answers.
package control
