// Package linktest has a TAP in memory and a conformance suite of
// [link.Device], which the one in memory and the real one pass.
//
// [Fake] is a device and at the same time the host behind it ([Host]): a test
// brings it up, sends frames into it and takes out what was written. It starts
// no goroutine but those of Watch and waits on channels only, so it works
// inside testing/synctest bubbles.
//
// It is as strict as the kernel where that matters to callers: frames of the
// host are lost while the interface is down or without carrier, or when more
// than the queue length wait; frames shorter than their headers, or written to
// an interface that is down, are refused and counted.
package linktest
