// Package linktest provides a TAP in memory, and a conformance suite of [link.Device] that
// both this and the real TAP pass.
//
// [Fake] is both a device and the host behind it ([Host]): a test sets it up, sends frames
// to the device and receives the frames that the device writes. Only Watch starts
// goroutines, and all waiting is on channels, so Fake works inside testing/synctest bubbles.
//
// Fake is as strict as the kernel where callers depend on it: frames of the host are lost
// while the interface is down or has no carrier, or if the queue is full. Frames shorter
// than their headers, and frames written to an interface that is down, are refused and
// counted.
package linktest
