// Package compare has benchmarks of the two backends with the same pattern of traffic: UD
// messages per second in batches, and the round-trip time of one message. They run in a
// guest, as root; `make bench-vm` compares them with perftest's.
//
//   - verbs: the rxe devices that the environment names, TEST_IPOIBD_VERBS_A and _B;
//   - soft: two software HCAs on a veth pair, in separate namespaces.
package compare
