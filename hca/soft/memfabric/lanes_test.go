package memfabric_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// arrivals returns how many datagrams have arrived at each port.
func arrivals(ports []*memfabric.Port) (n []uint64) {
	synctest.Wait()
	for _, p := range ports {
		n = append(n, counter(p, "rx_packets"))
	}
	return n
}

// lanes runs a test with a netdev of three ports and one of two, which receive until the end.
func lanes(t *testing.T, test func(t *testing.T, f *memfabric.Fabric, a, b []*memfabric.Port)) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		defer f.Close()
		a, b := f.AttachLanes(3, "a", 1500, addrA), f.AttachLanes(2, "b", 1500, addrB)
		for _, p := range append(slices.Clone(a), b...) {
			go func() {
				for pkts := make([]transport.Packet, 8); ; {
					if _, err := p.Recv(pkts); err != nil {
						return
					}
				}
			}()
		}
		test(t, f, a, b)
	})
}

// The source port of a datagram selects the port that receives it. Multicast arrives at the first
// one, whichever joined, and not at the sender's netdev.
func TestLanesDivideDatagrams(t *testing.T) {
	lanes(t, func(t *testing.T, _ *memfabric.Fabric, a, b []*memfabric.Port) {
		var want [2]uint64
		for i, p := range a {
			send(t, p, addrA, addrB, i+1)
			want[int(p.SrcPort())%len(b)] += uint64(i + 1)
		}
		if got := arrivals(b); !slices.Equal(got, want[:]) || want[0] == 0 || want[1] == 0 {
			t.Errorf("%v arrived at the ports of b, want %v", got, want)
		}
		for _, p := range []*memfabric.Port{a[1], b[1]} {
			if err := p.Join(group); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range a {
			send(t, p, addrA, group, 2)
		}
		if got := arrivals(b); got[0] != want[0]+6 || got[1] != want[1] {
			t.Errorf("%v arrived at the ports of b after 6 to the group, want 6 more at the first one than %v", got, want)
		}
		if got := arrivals(a); slices.Max(got) != 0 {
			t.Errorf("%v arrived at the ports of a, which sent them", got)
		}
	})
}

// What changes the netdev changes it for all its ports.
func TestLanesShareTheNetdev(t *testing.T) {
	lanes(t, func(t *testing.T, _ *memfabric.Fabric, a, b []*memfabric.Port) {
		a[1].SetMTU(1400)
		for i, p := range a {
			if s := p.State(); s.MTU != 1400 || s.Name != "a" || s.Index != a[0].State().Index {
				t.Errorf("port %d: %+v", i, s)
			}
		}
		a[1].SetWritable(false)
		for i, p := range a {
			if n, err := p.Send([]transport.Packet{packet(addrA, addrB, "x")}); n != 0 || err != nil || p.Blocked() != 1 {
				t.Errorf("port %d: sent %d by a full wire, %v; blocked %d times", i, n, err, p.Blocked())
			}
		}
		a[2].SetWritable(true)
		b[0].SetUp(false)
		for _, p := range a {
			send(t, p, addrA, addrB, 1)
		}
		if got := drops(b[0], memfabric.DropPeerDown) + drops(b[1], memfabric.DropPeerDown); got != 3 {
			t.Errorf("%d dropped because the link is down, want 3", got)
		}
		a[2].Remove()
		for i, p := range a {
			if _, err := p.Send([]transport.Packet{packet(addrA, addrB, "x")}); !errors.Is(err, hca.ErrIO) {
				t.Errorf("port %d of a netdev that is gone: %v", i, err)
			}
		}
	})
}

// A netdev stays attached until its last port is closed. A closed port drops what arrives at it.
func TestNetdevIsDetachedWithItsLastPort(t *testing.T) {
	lanes(t, func(t *testing.T, f *memfabric.Fabric, a, b []*memfabric.Port) {
		sendAll := func() {
			for _, p := range a {
				send(t, p, addrA, addrB, 1)
			}
			time.Sleep(time.Millisecond)
		}
		if err := b[0].Close(); err != nil {
			t.Error(err)
		}
		sendAll()
		if got := arrivals(b)[1]; got == 0 || got+drops(b[0], memfabric.DropUnreadable) != 3 {
			t.Errorf("%d arrived at the open port, %d were dropped at the other, of 3", got, drops(b[0], memfabric.DropUnreadable))
		}
		if err := b[1].Close(); err != nil {
			t.Error(err)
		}
		sendAll()
		for i, p := range a {
			if n := drops(p, memfabric.DropUnreachable); n != 1 {
				t.Errorf("port %d: %d datagrams to a detached netdev were unreachable, want 1", i, n)
			}
		}
		if again := f.Attach("b", 1500, addrB); again.State().Name != "b" {
			t.Errorf("attached again as %+v", again.State())
		}
	})
}
