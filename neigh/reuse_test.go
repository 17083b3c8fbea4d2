package neigh

import (
	"testing"
	"time"
)

// The host's cache keeps an entry for ever while it has fewer than gc_thresh1 (128).
// So a frame for a peer that was forgotten goes to no other interface of that GID.
func TestMACOfAForgottenPeerGoesToNoOther(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	cached := b.macOf(peerB)
	b.ready(b.step(hostIP(ownMAC, cached, ip(ipA), ip(ipB))))
	b.advance(usedIdle + sweepInterval)
	other := endpoint{peerB.gid, peerB.qpn + 1}
	b.meet(other, ipC)
	b.ready(b.step(hostIP(ownMAC, b.macOf(other), ip(ipA), ip(ipC))))
	b.advance(time.Second)
	if d, ok := b.snap.Unicast(cached); ok && d.QPN == other.qpn {
		t.Errorf("a frame for %s at %v goes to the queue pair of %s", ipB, cached, ipC)
	}
}
