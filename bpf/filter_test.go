package bpf_test

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

func newFilter(tb testing.TB) *bpf.Filter {
	tb.Helper()
	f, err := bpf.NewFilter()
	must(tb, err)
	tb.Cleanup(func() { must(tb, f.Close()) })
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
		before, err := f.Counts()
		must(t, err)
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
		after, err := f.Counts()
		must(t, err)
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
	counts, err := f.Counts()
	must(t, err)
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
	c, err := f.Counts()
	must(t, err)
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

// A program stays attached when its descriptor is closed: only the TAP can remove it.
func TestFilterOutlivesItsDescriptor(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := newTAP(t, 1)
	f, err := bpf.NewFilter()
	must(t, err)
	tap.set(unix.TUNSETFILTEREBPF, f.FD())
	must(t, f.Close())
	must(t, f.Close())
	lldp := ether(0x88cc, make([]byte, 50))
	must(t, tap.send(lldp))
	if got := tap.read(0, peerMAC); len(got) != 0 {
		t.Errorf("%d frames passed the filter", len(got))
	}
	tap.set(unix.TUNSETFILTEREBPF, -1)
	must(t, tap.send(lldp))
	if got := tap.read(0, peerMAC); len(got) != 1 {
		t.Errorf("%d frames arrived without the filter, want 1", len(got))
	}
}

func requireCounts(t *testing.T, f *bpf.Filter, want bpf.FilterCounts) {
	t.Helper()
	got, err := f.Counts()
	must(t, err)
	if got.Kinds != want.Kinds {
		t.Errorf("kinds %v, want %v", got.Kinds, want.Kinds)
	}
	if !slices.Equal(got.Bytes, want.Bytes) || !slices.Equal(got.Segments, want.Segments) {
		t.Errorf("%v and %v, want %v and %v", got.Bytes, got.Segments, want.Bytes, want.Segments)
	}
}
