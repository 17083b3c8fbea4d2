// Package verbstest opens two devices of the kernel by package verbs, for tests: two
// Soft-RoCE devices or InfiniBand HCAs in a guest, which reach each other and have no other users. [EnvA] and
// [EnvB] hold their names; without them the test fails. On InfiniBand, [EnvMGID] and [EnvMLID] hold a group that both
// ports have joined. The conformance suite (package
// hcatest) runs over each [Underlay], on these devices, bare or wrapped.
package verbstest
