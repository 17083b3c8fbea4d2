package bpf_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const headerLen = 10 // of the virtio header in front of each frame

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// tap is a TAP in the network namespace of the test. It is the only interface but lo.
type tap struct {
	tb     testing.TB
	index  int
	queues []int // descriptors, which do not block
	host   int   // a packet socket that sends as the host
}

// newTAP creates a TAP that is up. No address is configured, so the kernel itself sends no
// IPv4, but it may send IPv6 frames of its own.
func newTAP(tb testing.TB, queues int) *tap {
	tb.Helper()
	t := &tap{tb: tb}
	for range queues {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		must(tb, err)
		tb.Cleanup(func() { unix.Close(fd) })
		req, err := unix.NewIfreq("tap0")
		must(tb, err)
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
		must(tb, unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
		t.queues = append(t.queues, fd)
	}
	l, err := netlink.LinkByName("tap0")
	must(tb, err)
	t.index = l.Attrs().Index
	must(tb, netlink.LinkSetUp(l))
	t.host, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(tb, err)
	tb.Cleanup(func() { unix.Close(t.host) })
	must(tb, unix.SetsockoptInt(t.host, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	return t
}

// set makes a request with a descriptor of a program, or -1.
func (t *tap) set(request uint, fd int) {
	t.tb.Helper()
	must(t.tb, unix.IoctlSetPointerInt(t.queues[0], request, fd))
}

// send sends an Ethernet frame as the host. It returns the error of the kernel.
func (t *tap) send(frame []byte) error {
	return t.sendOffloaded([headerLen]byte{}, frame)
}

func (t *tap) sendOffloaded(header [headerLen]byte, frame []byte) error {
	return unix.Sendto(t.host, append(header[:], frame...), 0, &unix.SockaddrLinklayer{Ifindex: t.index})
}

// read returns the queued frames of a queue that the test itself has sent: those to dst.
func (t *tap) read(queue int, dst [6]byte) (frames [][]byte) {
	t.tb.Helper()
	buf := make([]byte, 1<<16+headerLen)
	for {
		n, err := unix.Read(t.queues[queue], buf)
		if errors.Is(err, unix.EAGAIN) {
			return frames
		}
		must(t.tb, err)
		if n >= headerLen+14 && [6]byte(buf[headerLen:]) == dst {
			frames = append(frames, append([]byte(nil), buf[headerLen:n]...))
		}
	}
}

var (
	peerMAC = [6]byte{2, 0, 0, 0, 0, 9}
	hostMAC = [6]byte{2, 0, 0, 0, 0, 1}
)

// ether returns a frame to peerMAC.
func ether(etherType uint16, payload []byte) []byte {
	b := append(peerMAC[:len(peerMAC):len(peerMAC)], hostMAC[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

// ipv4 returns a packet with the ports first in its payload. fragment is the field with
// the flags and the offset.
func ipv4(src, dst [4]byte, protocol byte, fragment uint16, ports [2]uint16, payload ...byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0x12, 0x34, byte(fragment >> 8), byte(fragment), 64, protocol, 0, 0}
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(b, ports[0])
	b = append(binary.BigEndian.AppendUint16(b, ports[1]), payload...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func ipv6(src, dst [16]byte, next byte, ports [2]uint16, payload ...byte) []byte {
	b := []byte{0x60, 0, 0, 0, 0, byte(4 + len(payload)), next, 64}
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(b, ports[0])
	return append(binary.BigEndian.AppendUint16(b, ports[1]), payload...)
}

// testRun runs a program of a TAP on a frame (BPF_PROG_TEST_RUN). The kernel takes the first 14
// bytes for a link-layer header, which a socket filter does not see, so the frame begins
// behind such a header.
func testRun(t *testing.T, fd int, frame []byte) uint32 {
	t.Helper()
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	prog, err := ebpf.NewProgramFromFD(dup)
	must(t, err)
	defer prog.Close()
	ret, err := prog.Run(&ebpf.RunOptions{Data: append(make([]byte, 14), frame...)})
	must(t, err)
	return ret
}

// drain reads the queued frames of all queues.
func (t *tap) drain() {
	var buf [2048]byte
	for _, fd := range t.queues {
		for err := error(nil); err == nil; {
			_, err = unix.Read(fd, buf[:])
		}
	}
}
