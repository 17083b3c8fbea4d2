package soft_test

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// fastHost is a host with a TAP, whose device has a fast path. What takes its way through the device goes nowhere.
type fastHost struct {
	*station.Station
	t       *testing.T
	ns      *nstest.Namespace
	dev     *soft.Device
	mac     [6]byte
	spec    hca.FastPathSpec
	path    hca.FastPath
	working atomic.Bool // the goroutine of the TAP reads
}

const (
	fastAddr = "10.9.0." // of the TAPs
	fastTAP  = "ib0"
)

// newFastHosts returns two hosts that are peers.
func newFastHosts(t *testing.T, addr func(int) string) (hosts [2]*fastHost) {
	t.Helper()
	var spaces [2]*nstest.Namespace
	spaces[0], spaces[1] = nstest.Pair(t, 1500)
	for i, ns := range spaces {
		hosts[i] = newFastHost(t, ns, i, addr(i))
	}
	for i, h := range hosts {
		peer := hosts[1-i]
		h.ns.Run("ip", "neighbour", "add", fastAddr+string(rune('2'-i)), "lladdr", net.HardwareAddr(peer.mac[:]).String(), "dev", fastTAP)
		h.Must(h.path.AddPeer(peer.mac, h.Towards(peer.Station, 1, 0)[0].UD), "set the peer")
	}
	return hosts
}

func newFastHost(t *testing.T, ns *nstest.Namespace, i int, addr string) *fastHost {
	t.Helper()
	h := &fastHost{t: t, ns: ns, mac: [6]byte{2, 0, 0, 0, 0, byte(1 + i)}}
	file := ns.Tap(fastTAP)
	ended, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		<-done
		file.Close()
	})
	tap := int(file.Fd())
	must(t, unix.SetNonblock(tap, true))
	ns.Run("ip", "link", "set", fastTAP, "address", net.HardwareAddr(h.mac[:]).String(), "up")
	ns.Run("ip", "address", "add", fastAddr+string(rune('1'+i))+"/24", "dev", fastTAP)
	ns.Do(func() {
		fds, err := bpf.LoadFastPath()
		must(t, err)
		loaded, err := bpf.OpenFastPath(fds)
		must(t, err)
		wire, err := udp.Open(udp.Config{Netdev: nstest.Dev, FastPath: loaded})
		must(t, err)
		h.dev, err = soft.Open(soft.Config{Name: "soft", Transport: wire, PKeys: []hca.PKey{hca.PKeyDefault}})
		must(t, err)
		netdev, err := netlink.LinkByName(fastTAP)
		must(t, err)
		must(t, kernel.AttachProgram(netdev.Attrs().Index, kernel.Egress, loaded.AtNetdev))
		must(t, kernel.AttachProgram(wire.State().Index, kernel.Ingress, loaded.AtUnderlay))
		loaded.Attached(netdev.Attrs().Index)
		loaded.Attached(wire.State().Index)
		h.spec = hca.FastPathSpec{Netdev: netdev.Attrs().Index, MAC: h.mac, SGIDIndex: gidIndex(t, h.dev, addr)}
	})
	h.Station = station.New(t, h.dev, h.spec.SGIDIndex)
	h.create()
	h.PostRecv(h.Receives(station.Depth))
	h.working.Store(true)
	wr := h.Towards(h.Station, 1, 0)[0]
	go func() {
		defer close(done)
		h.send(tap, wr, ended)
	}()
	go h.receive()
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *fastHost) create() {
	h.t.Helper()
	var err error
	h.path, err = hca.CreateFastPath(h.QP, h.spec)
	h.Must(err, "create the fast path")
}

// send sends what the host sends through the TAP to a queue pair that does not exist.
func (h *fastHost) send(tap int, wr hca.SendWR, ended <-chan struct{}) {
	const ether = 10 + 14 // a virtio header (linux/virtio_net.h) and the Ethernet header
	buf := make([]byte, 1<<16)
	wr.UD.QPN++
	for {
		attr, err := h.QP.Query()
		for err == nil && attr.State == hca.QPRTS && h.working.Load() {
			n, err := unix.Read(tap, buf)
			if err != nil {
				h.path.Posted(0)
				break
			}
			if n > station.Payload {
				continue
			}
			wr.SGList[0].Length = hca.EncapLen + uint32(copy(h.Outgoing()[hca.EncapLen:], buf[ether:n]))
			copy(h.Outgoing(), buf[ether-2:ether]) // the rest of the IPoIB header is zero
			_, _ = h.QP.PostSend([]hca.SendWR{wr}) // not in every state
			_, _ = h.Send.Poll(make([]hca.WC, station.Depth))
		}
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// receive drops what arrives until the CQ is closed.
func (h *fastHost) receive() {
	wcs := make([]hca.WC, station.Depth)
	for {
		n, err := h.Recv.Poll(wcs)
		if err != nil {
			return
		}
		if n > 0 {
			_, _ = h.QP.PostRecv(h.Receives(n)) // not in every state
			continue
		}
		if h.Recv.Arm() != nil || h.Recv.Wait(time.Time{}) != nil {
			return
		}
	}
}

// reaches reports whether a ping of the host is answered soon.
func (h *fastHost) reaches(other int) bool {
	for range 25 {
		_ = h.ns.Command("ping", "-q", "-c", "1", "-W", "0.2", nstest.IPv4(other)).Run() // resolves the next hop
		if h.pings(other) {
			return true
		}
	}
	return false
}

func (h *fastHost) pings(other int) bool {
	return h.ns.Command("ping", "-q", "-c", "1", "-W", "0.2", fastAddr+string(rune('1'+other))).Run() == nil
}

// to changes the state of the QP.
func (h *fastHost) to(states ...hca.QPState) {
	h.t.Helper()
	for _, to := range states {
		attr, err := h.QP.Query()
		h.Must(err, "query")
		next := hca.QPAttr{State: to, Port: 1, QKey: attr.QKey, SQPSN: 0x123456}
		if next.QKey == 0 {
			next.QKey = fastQKey
		}
		h.Must(h.QP.Modify(next, hca.AttrState|hca.UDTransition(attr.State, to).Required), "to "+to.String())
	}
}

// fastQKey is that of stations.
const fastQKey = 0xb1b

// The fast path carries while the QP is in RTS, the port is up, the device is not paused, and no one holds it. It stops with
// the return of what ends one of these conditions.
func TestFastPathFollowsItsQP(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newFastHosts(t, nstest.IPv4)
	a, b := hosts[0], hosts[1]
	peer := a.Towards(b.Station, 1, 0)[0].UD
	bad := a.Towards(b.Station, 1, 16)[0]
	bad.SGList[0].LKey++
	recover := func() { a.to(hca.QPReset, hca.QPInit, hca.QPRTR, hca.QPRTS) }
	moved := peer
	moved.QPN++
	if fresh := a.Towards(b.Station, 1, 0)[0].UD; fresh.AH == peer.AH || !a.path.Renew(b.mac, fresh) || a.path.Renew(b.mac, moved) || a.path.Renew(a.mac, peer) {
		t.Error("a peer's handle is not renewed, or that of another destination")
	}
	for _, c := range []struct {
		name      string
		stop, run func()
		receives  bool // from the other host all the same
	}{
		{"SQD", func() { a.to(hca.QPSQD) }, func() { a.to(hca.QPRTS) }, false},
		{"ERR", func() { a.to(hca.QPErr) }, recover, false},
		{"RESET", func() { a.to(hca.QPReset) }, func() { a.to(hca.QPInit, hca.QPRTR, hca.QPRTS) }, false},
		{"INIT", func() { a.to(hca.QPReset, hca.QPInit) }, func() { a.to(hca.QPRTR, hca.QPRTS) }, false},
		{"RTR", func() { a.to(hca.QPReset, hca.QPInit, hca.QPRTR) }, func() { a.to(hca.QPRTS) }, false},
		{"a failed send", func() { a.PostSend([]hca.SendWR{bad}) }, recover, false},
		{"held", func() { a.path.Hold() }, func() { a.path.Release() }, false},
		{"held twice", func() { a.path.Hold(); a.path.Hold(); a.path.Release() }, func() { a.path.Release() }, false},
		{"held in RESET", func() { a.path.Hold(); a.to(hca.QPReset) }, func() { a.to(hca.QPInit, hca.QPRTR, hca.QPRTS); a.path.Release() }, false},
		{"paused", func() { a.Must(a.dev.Pause(), "pause") }, func() { a.dev.Resume() }, false},
		{"no peer", func() { _, err := a.path.RemovePeer(b.mac); a.Must(err, "remove the peer") }, func() { a.Must(a.path.AddPeer(b.mac, peer), "set the peer") }, false},
		{"no P_Key", func() { a.dev.SetPKeys(nil) }, func() { a.dev.SetPKeys([]hca.PKey{hca.PKeyDefault}) }, false},
		{"no address", func() { a.ns.Run("ip", "address", "flush", "dev", nstest.Dev); a.waitGIDs(0) }, func() {
			a.ns.Run("ip", "address", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
			a.waitGIDs(1)
		}, false},
		{"port down", func() { setLink(t, a.ns, false); a.waitPort(hca.PortDown) }, func() { setLink(t, a.ns, true); a.waitPort(hca.PortActive) }, false},
		{"a frame that waits in the TAP", func() {
			a.working.Store(false)
			a.path.Hold()
			a.pings(1)
			a.path.Release()
		}, func() { a.working.Store(true) }, true},
	} {
		if !a.reaches(1) {
			t.Fatalf("before %q: the host does not reach the other one: %v %v", c.name, a.path.Counters(), b.path.Counters())
		}
		c.stop()
		sent, received := carried(a.path)
		if a.pings(1) || b.pings(0) {
			t.Errorf("%s: the hosts reach each other", c.name)
		}
		if s, r := carried(a.path); s != sent || r != received && !c.receives {
			t.Errorf("%s: %d frames sent and %d received on the fast path, were %d and %d", c.name, s, r, sent, received)
		}
		c.run()
	}
	if !a.reaches(1) {
		t.Errorf("afterwards, the host does not reach the other one: %v", a.path.Counters())
	}
	counts, ok := a.path.PeerCounts(b.mac)
	if !ok || counts.TxPackets == 0 || counts.RxPackets == 0 {
		t.Errorf("counts of the peer: %+v, %t", counts, ok)
	}
	if _, err := hca.CreateFastPath(a.QP, a.spec); !errors.Is(err, hca.ErrBusy) {
		t.Errorf("a second fast path: %v", err)
	}
	a.ns.Run("ip", "link", "delete", nstest.Dev)
	sent, _ := carried(a.path)
	a.pings(1)
	if s, _ := carried(a.path); s != sent {
		t.Errorf("%d frames sent without an underlay", s-sent)
	}
	counts, _ = a.path.PeerCounts(b.mac)
	a.Must(a.path.Close(), "close the fast path")
	a.Must(a.path.Close(), "close it again")
	last, ok := a.path.PeerCounts(b.mac)
	if removed, err := a.path.RemovePeer(b.mac); !ok || last != counts || removed != counts || err != nil {
		t.Errorf("last counts of the peer: %+v, %t, removed with %+v, %v; want %+v", last, ok, removed, err, counts)
	}
	if err := a.path.AddPeer(b.mac, peer); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("a peer of a closed fast path: %v", err)
	}
}

// carried returns the frames that a fast path has carried.
func carried(p hca.FastPath) (sent, received uint64) {
	for _, c := range p.Counters() {
		switch c.Name {
		case "tx_packets":
			sent = c.Value
		case "rx_packets":
			received = c.Value
		}
	}
	return sent, received
}

func (h *fastHost) waitPort(state hca.PortState) {
	h.t.Helper()
	h.eventually(func(p hca.PortAttr) bool { return p.State == state })
}

// waitGIDs waits until the port has a number of IPv4 addresses.
func (h *fastHost) waitGIDs(want int) {
	h.t.Helper()
	h.eventually(func(p hca.PortAttr) (ok bool) {
		n := 0
		for _, g := range p.GIDs {
			if g.GID.Addr().Is4() {
				n++
			}
		}
		return n == want
	})
}

func (h *fastHost) eventually(ok func(hca.PortAttr) bool) {
	h.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		p, err := h.dev.QueryPort(1)
		h.Must(err, "query port")
		if ok(p) {
			h.path.Hold() // the gate follows the port a little later
			h.path.Release()
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("the port is %+v", p)
		}
	}
}
