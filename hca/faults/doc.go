// Package faults injects faults into any [hca.Device] on command: [Wrap] a backend and
// call [Device.Inject]. While no fault is pending, it adds a few atomic loads to a post
// or a poll, and no allocation.
//
// # When a fault fires
//
// Each [Kind] has an occasion. A [Fault] skips After occasions, then fires at the next
// Count. Faults of the same kind fire one after the other.
//
//	kinds                                        | occasion
//	send_*, swallowed_send                       | a send is posted
//	recv_error_*, recv_flush_*, deaf_receive     | a message was received
//	recv_bad_key                                 | a receive is posted
//	cq_overrun, cq_error, completions_stop       | a completion is polled
//	cq_small                                     | CreateCQ
//	reset_fails                                  | Modify to RESET
//	create_qp_fails                              | CreateQP
//	verb_*                                       | a verb that may block: Fault.Verb, or any of an open device;
//	                                             | a post or a poll, if Fault.Verb names it
//	event_lost                                   | an event, also an injected one
//	device_fatal, unplug, port_*, gid_*, pkey_*  | Inject itself; if After is not 0,
//	                                             | a request is posted
//
// # What a fault does
//
// A fault uses the backend's own behaviour where possible. A failing send is posted
// with an invalid L_Key, so the backend fails it, moves the queue pair (to SQE, if the
// backend implements it) and flushes the later sends. A backend may refuse to post it:
// then the send is posted unchanged, the message goes out, and its completion is reported
// as failed; the queue pair stays in RTS. The kinds that end in ERR move the queue pair
// there with Modify before the completion is reported. The *_flush_* kinds report the
// failed request as flushed, so that no completion shows the cause. With recv_bad_key and
// cq_small, the backend does everything else: it fails a receive that it cannot write to,
// and it overruns a CQ and reports the event, if it has one.
//
//	fault              | lasts until
//	cq_overrun         | the CQ is closed
//	cq_small           | the CQ is closed; nothing completes
//	completions_stop   | the CQ is closed; completions are lost
//	deaf_receive       | the QP is reset or closed; messages are lost
//	swallowed_send     | (one completion is lost)
//	verb_hangs         | Device.Release
//	verb_hangs_forever | never ends, not even with a reset
//	verb_eio           | (one verb fails)
//	verb_enomem        | (one verb fails)
//	event_lost         | (one event is lost)
//	device_fatal       | never ends: posts fail, and verbs that allocate, change or query
//	unplug             | as device_fatal, and no completions are delivered
//	port_down          | port_up; the port reports that it is down, traffic continues
//	gid_change         | the next one, which undoes it: the first GID is missing
//	pkey_change        | the next one, which undoes it: the first P_Key is missing
//
// Memory and address handles are the backend's own, not wrapped. Inject and Release
// may be called from any goroutine.
package faults
