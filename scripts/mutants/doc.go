// Mutants breaks what recovery must do, on purpose, and sees whether the tests
// notice. Each patch in testdata breaks one requirement, the one in its name;
// run in the root of the module, it applies one patch after the other to a copy
// of the tree, runs the tests that the patch names, and prints for each what was
// broken and whether that was noticed:
//
//	requirement  verdict   seconds  broken             its tests
//	R6           killed    2.1      a rung is skipped  TestTranscripts/R06/ladder
//
// With -run it takes the patches alone whose names match.
//
// # A patch
//
// It is a unified diff with a head. The file R06-skip-a-rung.patch begins with
// one line that says what it breaks and one for each test that must fail, which
// bears the requirement's number in its name:
//
//	Breaks: a QP that cannot be reset has its CQ rebuilt at once.
//	Test: ipoibd/qprecovery TestTranscripts/R06/ladder
//
//	--- a/qprecovery/table.go
//
// Made with diff -U1, it survives edits nearby. One that applies no more is
// mended by hand; the tests of this package find it.
//
// # Verdicts
//
//	verdict    | cause
//	killed     | every test that the patch names fails
//	survived   | one of them passes: it is too weak
//	not ended  | one of them was not run to its end, or does not exist
//	timed out  | a test did not end in time, which shows nothing
//	not built  | the patch breaks the build, which shows nothing
//	stale      | the patch does not apply
//
// It exits with 1 unless all are killed, and before it tries any when one of the
// tests fails without a patch.
//
// # The copies
//
// What git knows, and what it would add, is copied once into a temporary folder,
// as it is in the working tree, with changes that are not committed; each patch
// has a copy of that. Nothing is written to the working tree. Paths are trimmed
// in the builds, so that all copies share the build cache.
package main
