// Package faults injects faults into any [hca.Device], on command: [Wrap] it
// around a backend and call [Device.Inject]. While nothing is planned it adds two
// atomic loads to a post or a poll, and no allocation.
//
// # When a fault strikes
//
// Each [Kind] has an occasion. A [Fault] lets After occasions pass, then strikes
// the next Count. Several faults of one kind take their turns.
//
//	kinds                                        | occasion
//	send_*, swallowed_send                       | a send is posted
//	recv_error_*, recv_flush_*, deaf_receive     | a message was received
//	recv_bad_key                                 | a receive is posted
//	cq_overrun, cq_error, completions_stop       | a completion is polled
//	cq_small                                     | CreateCQ
//	reset_fails                                  | Modify to RESET
//	create_qp_fails                              | CreateQP
//	verb_hangs, verb_hangs_forever               | a verb that may block, named by Fault.Verb or any
//	device_fatal, unplug, port_*, gid_*, pkey_*  | Inject itself, or a request is
//	                                             | posted where After is not 0
//
// # What a fault does
//
// What can be had from the backend is had there. A failed send names memory that
// no key covers, so the backend itself fails it, moves the queue pair (to SQE, where
// it has that) and flushes what comes after; the kinds that end in ERR move the
// queue pair there by Modify before the completion is reported. The *_flush_*
// kinds report the victim as flushed, so no completion tells the cause. With
// recv_bad_key and cq_small all that follows is the backend's: a receive that it
// cannot write to, and a CQ that overruns, with the event, if it has any.
//
//	fault              | lasts until
//	cq_overrun         | the CQ is closed
//	cq_small           | the CQ is closed; nothing completes
//	completions_stop   | the CQ is closed; completions are lost
//	deaf_receive       | the QP is reset or closed; messages are lost
//	swallowed_send     | (one completion is lost)
//	verb_hangs         | Device.Release
//	verb_hangs_forever | for good, across resets
//	device_fatal       | for good: posts and verbs that allocate or change fail
//	unplug             | as device_fatal, and nothing completes any more
//	port_down          | port_up; the port reports itself down, traffic is not stopped
//	gid_change         | the next one, which undoes it: the first GID is gone
//	pkey_change        | the next one, which undoes it: the first P_Key is gone
//
// Memory and address handles are the backend's own. Inject and Release may be
// called from any goroutine.
package faults
