package link_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"ipoibd/link"
	"ipoibd/link/linktest"
	"ipoibd/link/linktest/nstest"
)

func TestTAPConforms(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	linktest.Run(t, func(t *testing.T) (link.Device, linktest.Host) {
		tap, _ := openTAP(t, spec("ib0"))
		return tap, newHost(t)
	})
}

// An adopted interface keeps the host's settings, and its carrier stays down until
// SetCarrier: no watcher sees it earlier.
func TestAdoptKeepsEverything(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	first, adopted := openTAP(t, spec("ib0"))
	if adopted {
		t.Error("adopted an interface that was not there")
	}
	prefix := netip.MustParsePrefix("192.0.2.1/24")
	h := newHost(t)
	h.SetUp(true)
	h.SetMTU(1400)
	h.AddAddr(prefix)
	must(t, first.SetCarrier(true))
	must(t, first.Close())
	closed, err := netlink.LinkByName("ib0")
	must(t, err)
	if closed.Attrs().OperState == netlink.OperUp {
		t.Error("carrier on after Close")
	}

	updates := make(chan netlink.LinkUpdate, 64)
	stop := make(chan struct{})
	must(t, netlink.LinkSubscribe(updates, stop))
	other := spec("ib0")
	other.MTU, other.MAC[5] = 1280, 0x99
	second, adopted := openTAP(t, other)
	if !adopted {
		t.Error("created the interface instead of adopting it")
	}
	s, err := second.State()
	must(t, err)
	if !s.Up || s.Carrier || s.MTU != 1400 || s.MAC != [6]byte([]byte(testMAC)) || !slices.Contains(s.Addrs, prefix) {
		t.Errorf("adopted %+v", s)
	}
	must(t, netlink.LinkSetAlias(closed, link.AliasPrefix+" done")) // a last message
	for u := range updates {
		if u.Attrs().OperState == netlink.OperUp {
			t.Error("the carrier flickered")
		}
		if u.Attrs().Alias == link.AliasPrefix+" done" {
			break
		}
	}
	close(stop)
}

func TestCreateSetsWhatTheSpecSays(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := spec("ib7")
	s.MTU = 9000
	openTAP(t, s)
	l, err := netlink.LinkByName("ib7")
	must(t, err)
	a := l.Attrs()
	if a.MTU != 9000 || a.TxQLen != 500 || !strings.HasPrefix(a.Alias, link.AliasPrefix) || string(a.HardwareAddr) != testMAC {
		t.Errorf("attributes = %+v", a)
	}
	tap, ok := l.(*netlink.Tuntap)
	if !ok || tap.NonPersist || tap.Queues != 1 || tap.Flags&netlink.TUNTAP_VNET_HDR == 0 {
		t.Errorf("link = %+v", l)
	}
}

// Frames of the full MTU pass both ways, also with a VLAN tag.
func TestFramesOfEveryMTU(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	bufs, sizes := [][]byte{make([]byte, link.HeaderLen+14+9000)}, make([]int, 1)
	for _, mtu := range []int{68, 1280, 1500, 2044, 4092, 9000} {
		h.SetMTU(mtu)
		sent := make([]byte, 14+mtu)
		binary.BigEndian.PutUint16(sent[12:], linktest.EtherType)
		for i := range sent[14:] {
			sent[14+i] = byte(i)
		}
		h.Send(sent)
		got := readOwn(t, tap, bufs, sizes)
		if !bytes.Equal(got[link.HeaderLen:], sent) || !bytes.Equal(got[:link.HeaderLen], make([]byte, link.HeaderLen)) {
			t.Fatalf("MTU %d: the frame from the host differs", mtu)
		}
		if _, err := tap.WriteVectors([][][]byte{{got}}, make([]bool, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		back, err := h.Recv(ctx)
		cancel()
		if err != nil || !bytes.Equal(back, sent) {
			t.Fatalf("MTU %d: the frame to the host differs: %v", mtu, err)
		}
	}
}

// readOwn returns the next frame of the test's EtherType.
func readOwn(tb testing.TB, dev link.Device, bufs [][]byte, sizes []int) []byte {
	tb.Helper()
	for {
		n, err := dev.ReadBatch(bufs, sizes)
		if err != nil || n == 0 {
			tb.Fatalf("read: %d, %v", n, err)
		}
		f := bufs[0][:sizes[0]]
		if binary.BigEndian.Uint16(f[link.HeaderLen+12:]) == linktest.EtherType {
			return f
		}
	}
}

// ping works between the host stacks of two namespaces, through two TAPs and two loops that
// copy the frames.
func TestPingAcrossTwoTAPs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	taps, hosts := wire(t)
	for i, h := range hosts {
		h.Run("ip", "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "ib0")
	}
	hosts[0].Run("ping", "-c3", "-i0.01", "-W5", "-s1400", "192.0.2.2")
	neighbours, err := taps[0].Neighbours()
	must(t, err)
	want := link.Neighbour{IP: netip.MustParseAddr("192.0.2.2"), MAC: [6]byte{2, 0, 0, 0, 0, 1}}
	if !slices.Contains(neighbours, want) {
		t.Errorf("Neighbours = %v, want %v in it", neighbours, want)
	}
	for _, tap := range taps {
		awaitAgreement(t, tap)
	}
}

// wire joins the TAPs of two hosts, both up, until the test ends.
func wire(t *testing.T) (taps [2]*link.TAP, hosts [2]*nstest.Namespace) {
	t.Helper()
	for i := range taps {
		hosts[i] = nstest.New(t)
		hosts[i].Do(func() {
			s := spec("ib0")
			s.MAC[5] = byte(i)
			taps[i], _ = openTAP(t, s)
		})
		hosts[i].Run("ip", "link", "set", "ib0", "up")
		must(t, taps[i].SetCarrier(true))
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(taps[0], taps[1]) })
	pumps.Go(func() { pump(taps[1], taps[0]) })
	t.Cleanup(func() {
		for _, tap := range taps {
			must(t, tap.Close())
		}
		pumps.Wait()
	})
	return taps, hosts
}

// awaitAgreement waits until the kernel's counters agree with those of the process. While a
// frame is on its way, only one of them has counted it.
func awaitAgreement(t *testing.T, tap *link.TAP) {
	t.Helper()
	var c link.Counters
	var k link.KernelCounters
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var err error
		if k, err = tap.KernelCounters(); err != nil {
			continue // another process holds the rtnl lock
		}
		c = tap.Counters()
		if k.TxPackets >= 4 && c.Read == k.TxPackets && c.Written == k.RxPackets {
			return
		}
	}
	t.Errorf("the kernel has counted %+v, and we %+v", k, c)
}

func pump(from, to *link.TAP) {
	bufs, sizes := make([][]byte, 16), make([]int, 16)
	out, accepted := make([][][]byte, 16), make([]bool, 16)
	for i := range bufs {
		bufs[i] = make([]byte, 2048)
	}
	for {
		n, err := from.ReadBatch(bufs, sizes)
		if err != nil {
			return
		}
		for i := range n {
			out[i] = [][]byte{bufs[i][:sizes[i]]}
		}
		if _, err := to.WriteVectors(out[:n], accepted); err != nil {
			return
		}
	}
}

// For a port of a bridge, the host's addresses and neighbours are those of the bridge.
func TestBridgeAbove(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	ctx := t.Context()
	states, err := tap.Watch(ctx)
	must(t, err)
	run := func(args ...string) {
		t.Helper()
		out, err := runIP(t, args...)
		if err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	run("link", "add", "br0", "type", "bridge")
	run("link", "set", "ib0", "master", "br0")
	run("link", "set", "br0", "up")
	run("address", "add", "192.0.2.1/24", "dev", "br0")
	run("neighbour", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "br0")
	run("neighbour", "add", "2001:db8::2", "lladdr", "02:00:00:00:00:03", "dev", "ib0")
	for s := range states {
		if s.Master != 0 && s.MasterMAC != [6]byte{} && s.Promiscuous && slices.Contains(s.SelfAddrs(), netip.MustParsePrefix("192.0.2.1/24")) {
			break
		}
	}
	got, err := tap.Neighbours()
	must(t, err)
	for _, want := range []link.Neighbour{
		{IP: netip.MustParseAddr("192.0.2.2"), MAC: [6]byte{2, 0, 0, 0, 0, 2}},
		{IP: netip.MustParseAddr("2001:db8::2"), MAC: [6]byte{2, 0, 0, 0, 0, 3}},
	} {
		if !slices.Contains(got, want) {
			t.Errorf("Neighbours = %v, want %v in it", got, want)
		}
	}
	run("address", "add", "239.1.1.1/32", "dev", "br0", "autojoin")
	run("link", "set", "ib0", "up")
	groups, err := tap.Groups()
	must(t, err)
	for _, want := range []string{"224.0.0.1", "239.1.1.1", "ff02::1"} {
		if !slices.Contains(groups, netip.MustParseAddr(want)) {
			t.Errorf("Groups = %v, want %s in it", groups, want)
		}
	}
	run("neighbour", "add", "192.0.2.3", "nud", "incomplete", "dev", "br0")
	run("neighbour", "add", "2001:db8::3", "nud", "incomplete", "dev", "ib0")
	unresolved, err := tap.Unresolved()
	must(t, err)
	want := []netip.Addr{netip.MustParseAddr("2001:db8::3"), netip.MustParseAddr("192.0.2.3")}
	if !slices.Equal(unresolved, want) {
		t.Errorf("Unresolved = %v, want %v", unresolved, want)
	}
}

// A hundred starts and stops leave no goroutine and no descriptor.
func TestNoLeak(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	cycle := func() {
		tap, _, err := link.Open(spec("ib0"))
		must(t, err)
		states, err := tap.Watch(t.Context())
		must(t, err)
		done := make(chan error)
		go func() {
			_, err := tap.ReadBatch([][]byte{make([]byte, 100)}, make([]int, 1))
			done <- err
		}()
		<-states
		must(t, tap.Close())
		if err := <-done; !errors.Is(err, link.ErrClosed) {
			t.Errorf("ReadBatch = %v, want ErrClosed", err)
		}
		for range states {
		}
	}
	cycle() // what the runtime and the libraries open once
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 100 {
		cycle()
	}
	requireNoMore(t, goroutines, files)
	must(t, link.Delete("ib0"))
}

// requireNoMore waits a short time for goroutines that are about to end.
func requireNoMore(t *testing.T, goroutines, files int) {
	t.Helper()
	g, f := runtime.NumGoroutine(), openFiles(t)
	for end := time.Now().Add(patience); g > goroutines || f > files; g, f = runtime.NumGoroutine(), openFiles(t) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d descriptors, were %d and %d", g, f, goroutines, files)
		}
		time.Sleep(time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// Neither reading nor writing frames allocates. The batch is full, so that the kernel's own
// frames do not change the number of rounds.
func TestNoAllocationPerFrame(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	frame := make([]byte, 600)
	binary.BigEndian.PutUint16(frame[12:], linktest.EtherType)
	const rounds = 100
	for range rounds + 1 {
		h.Send(frame)
	}
	bufs, sizes, out, accepted := [][]byte{make([]byte, 2048)}, make([]int, 1), [][][]byte{{nil}}, make([]bool, 1)
	if n := testing.AllocsPerRun(rounds, func() {
		if n, err := tap.ReadBatch(bufs, sizes); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		out[0][0] = bufs[0][:sizes[0]]
		if n, err := tap.WriteVectors(out, accepted); n != 1 || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per frame, want 0", n)
	}
}

func BenchmarkReadBatch(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) { benchmarkRead(b, batch) })
	}
}

// benchmarkRead needs root, because it creates a network namespace without entering a user
// namespace.
func benchmarkRead(b *testing.B, batch int) {
	nstest.New(b).Do(func() {
		tap, _ := openTAP(b, spec("ib0"))
		h := newHost(b)
		h.SetUp(true)
		must(b, tap.SetCarrier(true))
		frame := make([]byte, 1500)
		binary.BigEndian.PutUint16(frame[12:], linktest.EtherType)
		bufs, sizes := make([][]byte, batch), make([]int, batch)
		for i := range bufs {
			bufs[i] = make([]byte, 2048)
		}
		b.ReportAllocs()
		b.ResetTimer()
		for n := 0; n < b.N; {
			b.StopTimer()
			for range batch {
				h.Send(frame)
			}
			b.StartTimer()
			k, err := tap.ReadBatch(bufs, sizes)
			must(b, err)
			n += k
		}
	})
}
