// Package verbstest gives tests two devices of the kernel, opened by package
// verbs, that reach each other and that nobody else uses: two Soft-RoCE devices in
// a guest, whose names [EnvA] and [EnvB] hold. An [Underlay] is what the
// conformance suite (package hcatest) runs over, on these devices bare or wrapped.
// Where there is no such device the test fails.
package verbstest
