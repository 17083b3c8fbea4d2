package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

// programs are those of all tests. There are few, so that filters are used again.
var programs = sync.OnceValues(func() (*bpf.Programs, error) {
	fds, err := bpf.Load(3)
	if err != nil {
		return nil, err
	}
	return bpf.Open(fds)
})

// load loads programs with a number of filters.
func load(tb testing.TB, filters int) (p *bpf.Programs, fds []int) {
	tb.Helper()
	fds, err := bpf.Load(filters)
	must(tb, err)
	p, err = bpf.Open(fds)
	must(tb, err)
	return p, fds
}

func newFilter(tb testing.TB) *bpf.Filter {
	tb.Helper()
	p, err := programs()
	must(tb, err)
	f, err := p.Filter()
	must(tb, err)
	tb.Cleanup(f.Close)
	return f
}

// kindsOfFrames are one frame of each kind and more, beginning with the Ethernet type.
var kindsOfFrames = []struct {
	name      string
	etherType uint16
	kind      bpf.Kind
}{
	{"IPv4", 0x0800, bpf.Passed},
	{"ARP", 0x0806, bpf.Passed},
	{"RARP", 0x8035, bpf.Passed},
	{"IPv6", 0x86dd, bpf.Passed},
	{"802.1Q", 0x8100, bpf.VLAN},
	{"802.1ad", 0x88a8, bpf.VLAN},
	{"STP", 38, bpf.LLC},
	{"longest 802.3 length", 0x05ff, bpf.LLC},
	{"smallest type", 0x0600, bpf.OtherType},
	{"LLDP", 0x88cc, bpf.LLDP},
	{"PPPoE discovery", 0x8863, bpf.PPPoE},
	{"PPPoE session", 0x8864, bpf.PPPoE},
	{"MPLS", 0x8847, bpf.OtherType},
	{"largest type", 0xffff, bpf.OtherType},
}

// The filter judges the bytes of a frame, of any length: it passes a frame as a whole, or
// drops it.
func TestFilterOfEveryLength(t *testing.T) {
	f := newFilter(t)
	var want bpf.FilterCounts
	want.Bytes, want.Segments = make(bpf.Histogram, 18), make(bpf.Histogram, 12)
	for _, c := range kindsOfFrames {
		frame := ether(c.etherType, make([]byte, 66))
		for n := range len(frame) + 1 {
			kind := c.kind
			if n < 14 {
				kind = bpf.Runt
			}
			wantLen := uint32(0)
			if kind == bpf.Passed {
				wantLen = uint32(n)
				want.Segments[1]++
				want.Bytes[bits.Len(uint(n))]++
			}
			want.Kinds[kind]++
			if got := testRun(t, f.FD(), frame[:n]); got != wantLen {
				t.Errorf("%s, %d bytes: %d bytes pass, want %d", c.name, n, got, wantLen)
			}
		}
	}
	requireCounts(t, f, want)
}

// On a TAP, no frame that IPoIB cannot carry reaches the reader, the others arrive whole, and
// each is counted once. Without the filter all arrive.
func TestFilterOnTAP(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, f := newTAP(t, 1), newFilter(t)
	var frames [][]byte
	for _, c := range kindsOfFrames {
		frames = append(frames, ether(c.etherType, make([]byte, 50)))
	}
	for _, on := range []bool{false, true, false} {
		fd := -1
		if on {
			fd = f.FD()
		}
		tap.set(unix.TUNSETFILTEREBPF, fd)
		before := f.Counts()
		for i := range frames {
			must(t, tap.send(frames[i]))
		}
		got := tap.read(0, peerMAC)
		want := 0
		for i, c := range kindsOfFrames {
			if on && c.kind != bpf.Passed {
				continue
			}
			if want >= len(got) || !bytes.Equal(got[want], frames[i]) {
				t.Fatalf("filter %t: frame %d is not that of %s", on, want, c.name)
			}
			want++
		}
		if len(got) != want {
			t.Errorf("filter %t: %d frames arrived, want %d", on, len(got), want)
		}
		after := f.Counts()
		for k := range after.Kinds {
			var sent uint64
			for _, c := range kindsOfFrames {
				if on && c.kind == bpf.Kind(k) {
					sent++
				}
			}
			grown := after.Kinds[k] - before.Kinds[k]
			if grown != sent && (bpf.Kind(k) != bpf.Passed || grown < sent) { // the kernel sends IPv6 of its own
				t.Errorf("filter %t: kind %d has grown by %d, want %d", on, k, grown, sent)
			}
		}
	}
}

// A large frame passes whole, and is counted by the segments that the host leaves it to cut.
func TestFilterPassesLargeFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, f := newTAP(t, 1), newFilter(t)
	must(t, unix.IoctlSetInt(tap.queues[0], unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4))
	tap.set(unix.TUNSETFILTEREBPF, f.FD())
	packet := ipv4([4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}, unix.IPPROTO_TCP, 0x4000, [2]uint16{1, 2}, make([]byte, 16+1000*20)...)
	packet[32] = 5 << 4 // data offset
	// struct virtio_net_hdr: NEEDS_CSUM, GSO_TCPV4, hdr_len, gso_size, csum_start, csum_offset
	header := [headerLen]byte{1, 1, 54, 0, 0, 0, 34, 0, 16, 0}
	binary.LittleEndian.PutUint16(header[4:], 1000)
	frame := ether(0x0800, packet)
	must(t, tap.sendOffloaded(header, frame))
	got := tap.read(0, peerMAC)
	if len(got) != 1 || len(got[0]) != len(frame) {
		t.Fatalf("%d frames arrived, want one of %d bytes", len(got), len(frame))
	}
	counts := f.Counts()
	if counts.Segments[bits.Len(uint(20))] != 1 || counts.Bytes[bits.Len(uint(len(frame)))] != 1 {
		t.Errorf("%+v: want a frame of 20 segments and one of %d bytes", counts, len(frame))
	}
}

// The delay of the first frame for a waiting reader is measured, and no other.
func TestFilterMeasuresWaits(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, f := newTAP(t, 1), newFilter(t)
	tap.set(unix.TUNSETFILTEREBPF, f.FD())
	frame := ether(0x0800, make([]byte, 50))
	const slept = 20 * time.Millisecond
	f.Woke() // without a wait
	must(t, tap.send(frame))
	f.Woke()
	const waits = 3
	var longest time.Duration
	for range waits {
		start := time.Now()
		f.Waits()
		must(t, tap.send(ether(0x88cc, make([]byte, 50)))) // dropped
		must(t, tap.send(frame))
		time.Sleep(slept)
		must(t, tap.send(frame))
		f.Woke()
		longest = max(longest, time.Since(start))
		f.Woke()
	}
	c := f.Counts()
	var sum uint64
	for n, count := range c.Waits {
		sum += count
		if count > 0 && (n < bits.Len64(uint64(slept)) || n > bits.Len64(uint64(longest))) {
			t.Errorf("%d waits of 2^%d ns, want %v to %v", count, n, slept, longest)
		}
	}
	if sum != waits {
		t.Errorf("%d waits, want %d: %v", sum, waits, c.Waits)
	}
}

// A filter that is given back is used again, with counts of zero. Each counts its own frames.
func TestFiltersAreUsedAgain(t *testing.T) {
	const n = 2
	p, _ := load(t, n)
	var all []*bpf.Filter
	for i := range n {
		f, err := p.Filter()
		must(t, err)
		all = append(all, f)
		for range i + 1 {
			testRun(t, f.FD(), ether(0x88cc, make([]byte, 50)))
		}
	}
	for i, f := range all {
		if got := f.Counts().Kinds; got[bpf.LLDP] != uint64(i+1) || got[bpf.Passed] != 0 {
			t.Errorf("filter %d has counted %v", i, got)
		}
	}
	if _, err := p.Filter(); !errors.Is(err, bpf.ErrNoFilter) {
		t.Errorf("filter %d of %d: %v", n+1, n, err)
	}
	for range 2 {
		all[0].Close()
	}
	again, err := p.Filter()
	must(t, err)
	if again.FD() != all[0].FD() || again.Counts().Kinds != [bpf.NumKind]uint64{} {
		t.Errorf("descriptor %d with %v, want %d and zeros", again.FD(), again.Counts().Kinds, all[0].FD())
	}
	if _, err := p.Filter(); !errors.Is(err, bpf.ErrNoFilter) {
		t.Errorf("a filter that was closed twice is available twice: %v", err)
	}
}

// A process without capabilities, which makes no bpf(2) call, attaches loaded programs and reads their
// counts.
func TestLoadedProgramsNeedNoCapability(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	fds, err := bpf.Load(1)
	must(t, err)
	tap := newTAP(t, 1)
	withoutCapabilities(t, func() {
		if _, err := bpf.Load(1); !errors.Is(err, bpf.ErrNotPermitted) {
			t.Errorf("Load without capabilities: %v", err)
		}
		p, err := bpf.Open(fds)
		must(t, err)
		f, err := p.Filter()
		must(t, err)
		steering, err := p.Steering(2)
		must(t, err)
		tap.set(unix.TUNSETFILTEREBPF, f.FD())
		tap.set(unix.TUNSETSTEERINGEBPF, steering)
		must(t, tap.send(ether(0x88cc, make([]byte, 50))))
		if got := f.Counts().Kinds[bpf.LLDP]; got != 1 {
			t.Errorf("%d frames counted, want 1", got)
		}
	})
}

// A TAP that outlives its daemon keeps the filter, which then passes every frame.
func TestFilterPassesAllWithoutItsDaemon(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	p, fds := load(t, 1)
	f, err := p.Filter()
	must(t, err)
	tap := newTAP(t, 1)
	tap.set(unix.TUNSETFILTEREBPF, f.FD())
	lldp := ether(0x88cc, make([]byte, 50))
	must(t, tap.send(lldp))
	if got := tap.read(0, peerMAC); len(got) != 0 {
		t.Errorf("%d frames passed the filter", len(got))
	}
	for _, fd := range fds {
		must(t, unix.Close(fd))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the kernel empties the map in the background
		must(t, tap.send(lldp))
		got := tap.read(0, peerMAC)
		if len(got) == 1 && bytes.Equal(got[0], lldp) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d frames arrived, want one that is whole", len(got))
		}
	}
}

// Descriptors that are not those of programs are refused.
func TestOpenChecks(t *testing.T) {
	fds, err := bpf.Load(1)
	must(t, err)
	for name, fds := range map[string][]int{
		"none": nil, "no filter": fds[:len(fds)-1], "in another order": {fds[3], fds[4], fds[5], fds[6], fds[7], fds[0], fds[1], fds[2]}, "closed": {-1, -1, -1, -1, -1, -1, -1, -1},
	} {
		if _, err := bpf.Open(fds); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// Programs that could not be loaded, and none at all, say why.
func TestUnavailablePrograms(t *testing.T) {
	why := errors.New("why")
	for p, want := range map[*bpf.Programs]error{nil: bpf.ErrNotLoaded, bpf.Unavailable(why): why} {
		if _, err := p.Filter(); !errors.Is(err, want) {
			t.Errorf("filter: %v, want %v", err, want)
		}
		if _, err := p.Steering(1); !errors.Is(err, want) {
			t.Errorf("steering: %v, want %v", err, want)
		}
	}
}

func requireCounts(t *testing.T, f *bpf.Filter, want bpf.FilterCounts) {
	t.Helper()
	got := f.Counts()
	if got.Kinds != want.Kinds {
		t.Errorf("kinds %v, want %v", got.Kinds, want.Kinds)
	}
	if !slices.Equal(got.Bytes, want.Bytes) || !slices.Equal(got.Segments, want.Segments) {
		t.Errorf("%v and %v, want %v and %v", got.Bytes, got.Segments, want.Bytes, want.Segments)
	}
}
