package soft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// countingSink is a transport that takes everything, counts it and sends nothing.
type countingSink struct {
	transport.Transport
	packets int
}

func (s *countingSink) Send(pkts []transport.Packet) (int, error) {
	for i := range pkts {
		s.packets += pkts[i].Datagrams()
	}
	return len(pkts), nil
}

// manyPeers returns a list of n peers.
func manyPeers(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{198, 18 | byte(i>>16), byte(i >> 8), byte(i)}))
	}
	return list
}

// replicator posts a multicast message of 60 bytes, an ARP request, that goes to n peers.
func replicator(tb testing.TB, n int) (post func(), s *countingSink) {
	s = &countingSink{}
	peers := manyPeers(n)
	r := newRigOn(tb, memfabric.New(1), "a", func(c *Config) {
		s.Transport = c.Transport
		c.Transport, c.Peers = s, func() []netip.Addr { return peers }
	}, testV4)
	wrs := []hca.SendWR{{SGList: []hca.SGE{r.mr.SGE(0, 60)}, UD: hca.UDDest{
		AH: r.ah(netip.MustParseAddr("239.1.2.3")), QPN: hca.QPNMulticast, QKey: rigQKey,
	}}}
	wcs := make([]hca.WC, 1)
	return func() {
		if _, err := r.qp.PostSend(wrs); err != nil {
			tb.Fatal(err)
		}
		if k, err := r.send.Poll(wcs); k != 1 || err != nil || wcs[0].Status != hca.WCSuccess {
			tb.Fatalf("%d completions, %v, %v", k, err, wcs[0].Status)
		}
	}, s
}

// A multicast message reaches each of 10,000 peers once, and allocates nothing.
func TestReplicationToTenThousandPeers(t *testing.T) {
	const n = 10_000
	post, s := replicator(t, n)
	post()
	if s.packets != n {
		t.Errorf("%d datagrams, want %d", s.packets, n)
	}
	if allocs := testing.AllocsPerRun(10, post); allocs != 0 {
		t.Errorf("%v allocations for each message", allocs)
	}
}

// BenchmarkReplication measures what a multicast message costs for each peer, without the
// transport.
func BenchmarkReplication(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			post, _ := replicator(b, n)
			for b.Loop() {
				post()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/peer")
		})
	}
}

// A large send to a group is refused if it would be too many datagrams: one frame of a process
// of the host, or of a guest, could be a thousand segments for each of 10,000 peers, in one call.
func TestLargeSendsToManyPeersAreRefused(t *testing.T) {
	peers := manyPeers(10_000)
	s := &countingSink{}
	r := newRigOn(t, memfabric.New(1), "a", func(c *Config) {
		s.Transport = c.Transport
		c.Transport, c.Peers = s, func() []netip.Addr { return peers }
	}, testV4)
	wr := hca.SendWR{
		SGList: []hca.SGE{r.mr.SGE(0, 64)}, LSO: hca.LSO{Header: tcpHeader, MSS: 1},
		UD: hca.UDDest{AH: r.ah(netip.MustParseAddr("239.1.2.3")), QPN: hca.QPNMulticast, QKey: rigQKey},
	}
	start := time.Now()
	n, err := r.qp.PostSend([]hca.SendWR{wr})
	if n != 0 || !errors.Is(err, hca.ErrInvalid) || s.packets > 0 {
		t.Errorf("%d sends posted, %v, %d datagrams in %v", n, err, s.packets, time.Since(start))
	}
}

// A burst of multicast to many peers does not keep PostSend: the rest is sent afterwards, and the
// completions come in between.
func TestReplicationDoesNotKeepPostSend(t *testing.T) {
	const n, sends = 10_000, 8
	peers := manyPeers(n)
	s := &countingSink{}
	r := newRigOn(t, memfabric.New(1), "a", func(c *Config) {
		s.Transport = c.Transport
		c.Transport, c.Peers = s, func() []netip.Addr { return peers }
	}, testV4)
	wr := hca.SendWR{SGList: []hca.SGE{r.mr.SGE(0, 60)}, UD: hca.UDDest{
		AH: r.ah(netip.MustParseAddr("239.1.2.3")), QPN: hca.QPNMulticast, QKey: rigQKey,
	}}
	if k, err := r.qp.PostSend(slices.Repeat([]hca.SendWR{wr}, sends)); k != sends || err != nil {
		t.Fatalf("%d sends posted, %v", k, err)
	}
	wcs := make([]hca.WC, sends)
	first := have(r.send.Poll(wcs))(t)
	if first > sends/2 {
		t.Errorf("PostSend returned after %d of %d sends were complete", first, sends)
	}
	for end := time.Now().Add(time.Minute); first < sends; time.Sleep(time.Millisecond) {
		if first += have(r.send.Poll(wcs))(t); time.Now().After(end) {
			t.Fatalf("%d of %d sends are complete", first, sends)
		}
	}
	if s.packets != n*sends {
		t.Errorf("%d datagrams, want %d", s.packets, n*sends)
	}
}
