// Package hcatest is the conformance suite of [hca.Device]: it tests the contract on any
// backend. The test of a backend calls [Run] with a [Harness] that opens two devices which
// can reach each other. [Features] declares how the backend behaves where the contract
// leaves a choice or hardware differs.
//
// # Why the tests are reliable on a real network
//
// No test depends on timing. A test waits for an expected message for at most
// Features.Patience. To show that a message does not arrive, it sends another one on the
// same path, and only the latter may arrive. Every test creates its own queue pairs,
// closes its objects in the order of the contract, and fails if a Close fails. With
// Harness.In the tests run inside testing/synctest, where waiting takes no real time.
package hcatest
