package udp

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// present is a netdev that is always there.
type present struct{}

func (present) Present() bool           { return true }
func (present) HasAddr(netip.Addr) bool { return true }
func (present) TooLong()                {}

// fakeKernel answers sendmmsg: it takes each packet, or returns its error.
type fakeKernel struct {
	*sender
	answer func(msg *unix.Mmsghdr) unix.Errno
}

func newFakeKernel(t *testing.T, answer func(*unix.Mmsghdr) unix.Errno) *fakeKernel {
	t.Helper()
	fd, ipv6, err := dualSocket()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := own(fd, ipv6, 0xc000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.file.Close() })
	k := &fakeKernel{sender: newSender(sock, 1, present{}), answer: answer}
	k.call = func(uintptr) bool {
		k.sent, k.err = 0, 0
		for i := k.from; i < k.to; i++ {
			if k.err = k.answer(&k.msgs[i]); k.err != 0 {
				break
			}
			k.sent++
		}
		if k.sent > 0 {
			k.err = 0
		}
		return true
	}
	return k
}

// isTrain reports whether a message asks the kernel to cut it.
func isTrain(msg *unix.Mmsghdr) bool {
	hdr := (*unix.Cmsghdr)(unsafe.Pointer(msg.Hdr.Control))
	return hdr.Level == unix.SOL_UDP && hdr.Type == unix.UDP_SEGMENT
}

// When the kernel cannot cut a train (EIO), Send asks for it to be built again, drops
// nothing, and takes no more trains. The reason is available.
func TestTrainsEndWithEIO(t *testing.T) {
	k := newFakeKernel(t, func(msg *unix.Mmsghdr) unix.Errno {
		if isTrain(msg) {
			return unix.EIO
		}
		return 0
	})
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	single := transport.Packet{Src: src, Dst: dst, Data: []byte{1}}
	train := transport.Packet{Src: src, Dst: dst, Data: []byte{1, 2, 3}, Segs: 3, SegSize: 1}
	tr := &Transport{tx: k.sender}
	if l := tr.Limits(); l.MaxSegs != transport.MaxSegs || tr.TrainsRefused() != nil {
		t.Fatalf("limits %+v, %v", l, tr.TrainsRefused())
	}
	n, err := tr.Send([]transport.Packet{single, train, single})
	if n != 1 || !errors.Is(err, transport.ErrLimits) {
		t.Errorf("Send = %d, %v, want 1, %v", n, err, transport.ErrLimits)
	}
	if l := tr.Limits(); l.MaxSegs != 1 || !errors.Is(tr.TrainsRefused(), unix.EIO) {
		t.Errorf("limits %+v, %v, want no trains because of EIO", l, tr.TrainsRefused())
	}
	if c := tr.tx.counters(); !slices.Contains(c, hca.Counter{Name: "tx_trains_refused", Kind: hca.CountGauge, Value: 1}) {
		t.Errorf("counters %+v do not show it", c)
	}
	if n, err := tr.Send([]transport.Packet{single, single, train}); n != 2 || !errors.Is(err, transport.ErrLimits) {
		t.Errorf("Send = %d, %v, want 2, %v", n, err, transport.ErrLimits)
	}
	for i := range k.counts.drops {
		if d := k.counts.drops[i].Load(); d != 0 {
			t.Errorf("%s: %d datagrams dropped", dropNames[i], d)
		}
	}
	if got := k.counts.packets.Load(); got != 3 {
		t.Errorf("%d packets sent, want 3", got)
	}
}

// EIO for a single packet drops it, and trains continue.
func TestEIOOfASinglePacket(t *testing.T) {
	k := newFakeKernel(t, func(msg *unix.Mmsghdr) unix.Errno {
		if isTrain(msg) {
			return 0
		}
		return unix.EIO
	})
	pkt := transport.Packet{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Data: []byte{1}}
	if n, err := k.send([]transport.Packet{pkt}); n != 1 || err != nil {
		t.Errorf("Send = %d, %v", n, err)
	}
	if k.counts.drops[dropOther].Load() != 1 || k.limits().MaxSegs == 1 {
		t.Errorf("%d dropped, limits %+v", k.counts.drops[dropOther].Load(), k.limits())
	}
}

// Older kernels answer EINVAL to a train whose datagrams are too long for the netdev. All of
// them count as too long.
func TestEINVALOfATrainIsTooLong(t *testing.T) {
	k := newFakeKernel(t, func(*unix.Mmsghdr) unix.Errno { return unix.EINVAL })
	pkt := transport.Packet{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		Data: make([]byte, 30000), Segs: 3, SegSize: 10000,
	}
	if n, err := k.send([]transport.Packet{pkt}); n != 1 || err != nil || k.counts.drops[dropTooLong].Load() != 3 {
		t.Errorf("Send = %d, %v, %d datagrams too long, want 1, 3", n, err, k.counts.drops[dropTooLong].Load())
	}
}
