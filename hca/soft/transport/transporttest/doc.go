// Package transporttest is the conformance suite of [transport.Transport]: the behaviour
// that every transport must have, whatever carries its datagrams.
//
// A package that implements the contract calls [Each] with a function that creates two
// hosts on one link and runs the test with them. The suite waits for events rather than
// for time, bounded by [Patience], so it runs on real netdevs as well as inside
// testing/synctest. To show that a datagram does not arrive, a test sends a marker after
// it and receives only the marker.
package transporttest
