// Package hcatest is the conformance suite of [hca.Device]: what the contract
// says, tried on any backend. A backend's test calls [Run] with a [Harness] that
// opens two devices which reach each other and declares, in [Features], where
// the contract leaves a choice or hardware differs.
//
// # How the tests hold on a real network
//
// Nothing is timed. What must come is awaited, at most Features.Patience; what
// must not come is followed by something that must, on the same path, and only
// the latter may arrive. Every test makes its own queue pairs, closes all that
// it made in the order of the contract, and fails if closing fails. With
// Harness.In the tests run inside testing/synctest, where patience costs
// nothing.
package hcatest
