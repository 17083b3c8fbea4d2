package memfabric_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
	group = netip.MustParseAddr("239.1.2.3")
)

// packet returns a datagram to dst.
func packet(src, dst netip.Addr, payload string) transport.Packet {
	return transport.Packet{Src: src, Dst: dst, Data: []byte(payload)}
}

// send sends n datagrams "0000", "0001", ... from a to b, one after the other.
func send(t testing.TB, p *memfabric.Port, src, dst netip.Addr, n int) {
	t.Helper()
	for i := range n {
		if k, err := p.Send([]transport.Packet{packet(src, dst, fmt.Sprintf("%04d", i))}); k != 1 || err != nil {
			t.Fatalf("Send = %d, %v", k, err)
		}
	}
}

// drain receives for an hour of virtual time, then closes the port.
func drain(p *memfabric.Port) (got []string) {
	time.AfterFunc(time.Hour, func() { _ = p.Close() })
	pkts := make([]transport.Packet, 8)
	for {
		n, err := p.Recv(pkts)
		if err != nil {
			return got
		}
		for _, pkt := range pkts[:n] {
			got = append(got, string(pkt.Data))
		}
	}
}

// cross sends n datagrams over a fabric with conditions. It returns the datagrams that
// arrived, and the receiving port b, closed.
func cross(t *testing.T, seed uint64, c memfabric.Conditions, n int) (got []string, b *memfabric.Port) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(seed, memfabric.WithConditions(c))
		defer f.Close()
		a := f.Attach("a", 1500, addrA)
		b = f.Attach("b", 1500, addrB)
		send(t, a, addrA, addrB, n)
		got = drain(b)
	})
	return got, b
}

func drops(p *memfabric.Port, why memfabric.Drop) uint64 { return counter(p, string(why)) }

func counter(p *memfabric.Port, name string) uint64 {
	for _, c := range p.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	panic("no counter " + name)
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1, memfabric.WithConditions(memfabric.Conditions{Delay: 30 * time.Millisecond}))
		defer f.Close()
		a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
		start := time.Now()
		send(t, a, addrA, addrB, 1)
		if n, err := b.Recv(make([]transport.Packet, 1)); n != 1 || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
		if d := time.Since(start); d != 30*time.Millisecond {
			t.Errorf("received after %v, want 30ms", d)
		}
	})
}

// Two runs with the same seed are equal; runs with different seeds differ.
func TestSeed(t *testing.T) {
	c := memfabric.Conditions{Loss: 0.2, Duplicate: 0.2, Reorder: 0.2, Jitter: time.Millisecond}
	first, _ := cross(t, 1, c, 200)
	again, _ := cross(t, 1, c, 200)
	other, _ := cross(t, 2, c, 200)
	if !slices.Equal(first, again) {
		t.Error("two runs with one seed differ")
	}
	if slices.Equal(first, other) {
		t.Error("runs with two different seeds are equal")
	}
}

func TestLoss(t *testing.T) {
	const n = 2000
	got, b := cross(t, 1, memfabric.Conditions{Loss: 0.1}, n)
	lost := drops(b, memfabric.DropLoss)
	if uint64(len(got))+lost != n || lost < n/20 || lost > n/5 {
		t.Errorf("%d arrived and %d were lost of %d at 10 %%", len(got), lost, n)
	}
	if !slices.IsSorted(got) {
		t.Error("loss changed the order of datagrams")
	}
	if got, _ := cross(t, 1, memfabric.Conditions{Loss: 1}, 10); len(got) != 0 {
		t.Errorf("%d arrived at 100 %% loss", len(got))
	}
}

func TestDuplicate(t *testing.T) {
	got, _ := cross(t, 1, memfabric.Conditions{Duplicate: 1}, 3)
	if want := []string{"0000", "0000", "0001", "0001", "0002", "0002"}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestReorder(t *testing.T) {
	got, _ := cross(t, 1, memfabric.Conditions{Reorder: 0.3}, 100)
	if slices.IsSorted(got) {
		t.Error("no datagram overtook another")
	}
	if slices.Sort(got); len(got) != 100 || len(slices.Compact(got)) != 100 {
		t.Errorf("%d of 100 datagrams arrived, or some arrived twice", len(got))
	}
}

// Under all conditions each datagram sent is received, or dropped for a counted reason;
// duplicates are counted in addition.
func TestAccounted(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := rapid.Float64Range(0, 1)
		c := memfabric.Conditions{
			Loss: p.Draw(r, "loss"), Duplicate: p.Draw(r, "duplicate"), Reorder: p.Draw(r, "reorder"),
			Delay:  time.Duration(rapid.IntRange(0, 1e6).Draw(r, "delay")),
			Jitter: time.Duration(rapid.IntRange(0, 1e6).Draw(r, "jitter")),
		}
		n, seed := rapid.IntRange(0, 60).Draw(r, "datagrams"), rapid.Uint64().Draw(r, "seed")
		got, b := cross(t, seed, c, n)
		slices.Sort(got)
		unique := len(slices.Compact(slices.Clone(got)))
		if lost := int(drops(b, memfabric.DropLoss)); unique+lost != n || len(got) > 2*(n-lost) {
			r.Fatalf("%d datagrams: %d received, %d of them unique, %d lost", n, len(got), unique, lost)
		}
		if rx := counter(b, "rx_packets"); rx != uint64(len(got)) {
			r.Fatalf("rx_packets = %d, want %d", rx, len(got))
		}
	})
}

func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		defer f.Close()
		a, b, c := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB), f.Attach("c", 1500, addrC)
		f.Partition("a", "b")
		send(t, a, addrA, addrB, 2)
		send(t, b, addrB, addrA, 1)
		send(t, a, addrA, addrC, 1)
		f.Unpartition("b", "a")
		send(t, a, addrA, addrB, 1)
		if n := drops(b, memfabric.DropPartition); n != 2 {
			t.Errorf("%d dropped towards b, want 2", n)
		}
		if n := drops(a, memfabric.DropPartition); n != 1 {
			t.Errorf("%d dropped towards a, want 1", n)
		}
		if got := drain(c); len(got) != 1 {
			t.Errorf("c received %q, want one", got)
		}
		if got := drain(b); len(got) != 1 {
			t.Errorf("b received %q, want the datagram sent after the partition", got)
		}
	})
}

func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1, memfabric.WithQueue(3))
		defer f.Close()
		a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
		send(t, a, addrA, addrB, 5)
		if n := drops(b, memfabric.DropOverflow); n != 2 {
			t.Errorf("%d dropped, want 2", n)
		}
		if got, want := drain(b), []string{"0000", "0001", "0002"}; !slices.Equal(got, want) {
			t.Errorf("received %q, want %q", got, want)
		}
	})
}

// A datagram that a link cannot carry is dropped for the right reason.
func TestUnderlayDrops(t *testing.T) {
	long := string(make([]byte, 1473))
	tests := []struct {
		name  string
		setUp func(a, b *memfabric.Port)
		pkt   transport.Packet
		at    func(a, b *memfabric.Port) *memfabric.Port
		want  memfabric.Drop
	}{
		{"no port with the address", nil, packet(addrA, addrC, "x"), sender, memfabric.DropUnreachable},
		{"own address", nil, packet(addrA, addrA, "x"), sender, memfabric.DropUnreachable},
		{"no member", nil, packet(addrA, group, "x"), sender, memfabric.DropUnreachable},
		{"foreign source", nil, packet(addrC, addrB, "x"), sender, memfabric.DropBadSource},
		{"too long", nil, packet(addrA, addrB, long), sender, memfabric.DropTooLong},
		{"too long for the peer", func(a, _ *memfabric.Port) { a.SetMTU(9000) }, packet(addrA, addrB, long), receiver, memfabric.DropRxTooLong},
		{"down", func(a, _ *memfabric.Port) { a.SetUp(false) }, packet(addrA, addrB, "x"), sender, memfabric.DropLinkDown},
		{"peer down", func(_, b *memfabric.Port) { b.SetUp(false) }, packet(addrA, addrB, "x"), receiver, memfabric.DropPeerDown},
		{"peer gone", func(_, b *memfabric.Port) { b.Remove() }, packet(addrA, addrB, "x"), sender, memfabric.DropUnreachable},
		{"peer without the address", func(_, b *memfabric.Port) { b.DelAddr(addrB) }, packet(addrA, addrB, "x"), sender, memfabric.DropUnreachable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := memfabric.New(1)
			defer f.Close()
			a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
			if tt.setUp != nil {
				tt.setUp(a, b)
			}
			if n, err := a.Send([]transport.Packet{tt.pkt}); n != 1 || err != nil {
				t.Fatalf("Send = %d, %v", n, err)
			}
			if n := drops(tt.at(a, b), tt.want); n != 1 {
				t.Errorf("%s = %d, want 1", tt.want, n)
			}
		})
	}
}

func sender(a, _ *memfabric.Port) *memfabric.Port   { return a }
func receiver(_, b *memfabric.Port) *memfabric.Port { return b }

// When a link goes down, datagrams in flight are dropped and counted.
func TestLinkDownDropsDatagramsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1, memfabric.WithConditions(memfabric.Conditions{Delay: time.Second}))
		defer f.Close()
		a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
		send(t, a, addrA, addrB, 3)
		b.SetUp(false)
		b.SetUp(true)
		if got := drain(b); len(got) != 0 || drops(b, memfabric.DropPeerDown) != 3 {
			t.Errorf("received %q, %d dropped, want none and 3", got, drops(b, memfabric.DropPeerDown))
		}
	})
}

func TestCapture(t *testing.T) {
	f := memfabric.New(1)
	defer f.Close()
	a, b, c := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB), f.Attach("c", 1500, addrC)
	var got []string
	f.Capture(func(s memfabric.Capture) {
		got = append(got, fmt.Sprintf("%s>%s %v>%v:%#x %q %s", s.From, s.To, s.Packet.Src, s.Packet.Dst, s.Packet.SrcPort, s.Packet.Data, s.Drop))
	})
	for _, p := range []*memfabric.Port{b, c} {
		if err := p.Join(group); err != nil {
			t.Fatal(err)
		}
	}
	f.Partition("a", "c")
	send(t, a, addrA, group, 1)
	send(t, a, addrA, netip.MustParseAddr("10.0.0.9"), 1)
	f.Capture(nil)
	send(t, a, addrA, addrB, 1)
	want := []string{
		`a>b 10.0.0.1>239.1.2.3:0xc000 "0000" `,
		`a>c 10.0.0.1>239.1.2.3:0xc000 "0000" rx_drop_partition`,
		`a> 10.0.0.1>10.0.0.9:0xc000 "0000" tx_drop_unreachable`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("captured\n%q, want\n%q", got, want)
	}
}

func TestInject(t *testing.T) {
	f := memfabric.New(1)
	defer f.Close()
	b := f.Attach("b", 1500, addrB)
	forged := transport.Packet{Src: addrC, Dst: addrB, SrcPort: 1, ID: 77, IDKnown: true, Data: []byte("forged")}
	b.Inject(forged)
	forged.Data[0] = 'F'
	pkts := make([]transport.Packet, 2)
	if n, err := b.Recv(pkts); n != 1 || err != nil {
		t.Fatalf("Recv = %d, %v", n, err)
	}
	got := pkts[0]
	if !bytes.Equal(got.Data, []byte("forged")) || got.Src != addrC || got.SrcPort != 1 || got.ID != 77 || !got.IDKnown {
		t.Errorf("received %+v, want the injected packet", got)
	}
}

func TestNotWritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		defer f.Close()
		a := f.Attach("a", 1500, addrA)
		a.SetWritable(false)
		if n, err := a.Send([]transport.Packet{packet(addrA, addrB, "x")}); n != 0 || err != nil {
			t.Errorf("Send = %d, %v, want 0, nil", n, err)
		}
		start := time.Now()
		time.AfterFunc(time.Minute, func() { a.SetWritable(true) })
		if err := a.WaitWritable(t.Context()); err != nil || time.Since(start) != time.Minute {
			t.Errorf("WaitWritable: %v after %v, want nil after a minute", err, time.Since(start))
		}
		send(t, a, addrA, addrB, 1)
	})
}

func TestReattach(t *testing.T) {
	f := memfabric.New(1)
	defer f.Close()
	first := f.Attach("a", 1500, addrA)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a name that is in use was attached again")
			}
		}()
		f.Attach("a", 1500)
	}()
	_ = first.Close()
	if again := f.Attach("a", 1500, addrA); again.SrcPort() == first.SrcPort() {
		t.Error("the new port has the old one's source port")
	}
}

func TestAllocs(t *testing.T) {
	f := memfabric.New(1)
	defer f.Close()
	a, b := f.Attach("a", 1500, addrA), f.Attach("b", 1500, addrB)
	out, in := make([]transport.Packet, 64), make([]transport.Packet, 64)
	for i := range out {
		out[i] = packet(addrA, addrB, "some bytes")
	}
	round := func() {
		if n, err := a.Send(out); n != len(out) || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		if n, err := b.Recv(in); n != len(out) || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
	}
	// Recv takes back the buffers that the previous Recv lent, so two rounds fill
	// the free list. AllocsPerRun runs one more round before it counts.
	round()
	if allocs := testing.AllocsPerRun(100, round); allocs != 0 {
		t.Errorf("%v allocations per batch of %d", allocs, len(out))
	}
}
