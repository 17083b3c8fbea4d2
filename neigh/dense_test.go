package neigh

import (
	"fmt"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// A host may run 110 containers with an interface each, the default of a Kubernetes
// node. All of them stay peers while data is sent to each, and no frame reaches the
// wrong one.
func TestManyInterfacesOfOneGIDStayPeers(t *testing.T) {
	const interfaces = 110
	b := attachedBench(t, Config{})
	addr := func(i int) string { return fmt.Sprintf("10.9.0.%d", i+1) }
	at := func(i int) endpoint { return endpoint{peerC.gid, hca.QPN(0x1000 + i)} }
	macs := make([]ipoib.MAC, interfaces) // the host's cache
	slow, wrong, all := 0, 0, 0
	send := func(i int) {
		all++
		if d, _, ok := b.snap.Unicast(macs[i]); ok {
			if d.QPN != at(i).qpn {
				wrong++
			}
			return
		}
		slow++
		b.ready(b.step(hostIP(ownMAC, macs[i], ip(ipA), ip(addr(i)))))
		if b.table.peers.live.byEndpoint[at(i)] == nil { // the host resolves it, and it answers
			b.ready(b.step(fabricARP(at(i), ipoib.ARPReply, addr(i), ipA, false)))
			macs[i] = b.macOf(at(i))
		}
	}
	for i := range interfaces {
		b.meet(at(i), addr(i))
		macs[i] = b.macOf(at(i))
		send(i)
	}
	b.advance(time.Second)
	asked := b.table.Stats().Requests
	slow, wrong, all = 0, 0, 0
	const seconds, perSecond = 10, 10
	for range seconds * perSecond {
		for i := range interfaces {
			send(i)
		}
		b.advance(time.Second / perSecond)
	}
	if slow > 0 || wrong > 0 {
		t.Errorf("of %d frames %d went to the wrong queue pair and %d found no peer; %d multicast requests in %d s",
			all, wrong, slow, b.table.Stats().Requests-asked, seconds)
	}
}

// BenchmarkInventedInterfacesOfOneGID measures the cost of one peer at a GID with the
// maximum number of peers, and its share of a processor at 2,000 a second.
func BenchmarkInventedInterfacesOfOneGID(b *testing.B) {
	bench := attachedBench(b, Config{})
	p := player{bench: bench}
	i := 0
	for b.Loop() {
		e := endpoint{peerC.gid, hca.QPN(2 + i%(1<<20))}
		p.quickStep(fabricARP(e, ipoib.ARPRequest, "0.0.0.0", ipA, true))
		bench.now = bench.now.Add(500 * time.Microsecond)
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)*2000/1e7, "%core@2000/s")
}
