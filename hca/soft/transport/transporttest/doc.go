// Package transporttest is the conformance suite of [transport.Transport]: what every
// transport must do, whatever carries its datagrams.
//
// A package that implements the contract calls [Each] with a function that
// builds two hosts on one link and runs the test on them. The suite waits for
// events rather than for time, and its limits are those of [Patience]; so it
// runs on real netdevs and inside testing/synctest alike. To show that
// something does not arrive, a test sends a marker after it and receives that.
package transporttest
