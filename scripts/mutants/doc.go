// Mutants breaks requirements of recovery on purpose and checks that the tests
// notice. Run in the root of the module, it applies each patch of testdata on its
// own, runs the tests that the patch names, and prints a verdict:
//
//	verdict  | cause
//	killed   | every test that the patch names fails
//	survived | one of them passes: it is too weak
//	unclear  | one of them has no result: it does not exist or was skipped, the
//	         | build broke, a test timed out. Or it fails without the patch, too
//	stale    | the patch does not apply
//
// It exits with 1 unless all are killed. With -run it tries only the patches
// whose names match. It changes no file of the tree: go test -overlay replaces
// those that a patch changes.
//
// # A patch
//
// It is a unified diff with a head. Its name begins with the requirement, and so
// must a part of the name of each test:
//
//	Breaks: the TAP is read while a rung runs.
//	Test: ipoibd/cmd/ipoibd/internal/iface TestR09FramesAreHeld
//
//	--- a/cmd/ipoibd/internal/iface/recovery.go
//
// Made with diff -U1, it survives changes nearby. A test reports the patches that
// no longer apply; mend those by hand.
//
// # The choice
//
// There is a patch where a mistake would harm users most and an ordinary test run
// would not show it:
//
//	R06 R07 R08 | a healthy device is reset: by repetition, by a peer, by a proof
//	            | that failed, by a full wire, by a stall of the daemon
//	R16 R22     | the device of another process or another device is reset or used
//	R09         | frames are lost while a rung runs
//	R10 R18 R19 | buffers, requests or goroutines leak
//	R20 R28     | a late completion or a handle of another device touches memory
//	            | that is in use again
package main
