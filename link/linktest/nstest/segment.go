package nstest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// bridge is the name of a segment's bridge in its own namespace.
const bridge = "br0"

// tapFrames is how many frames wait for the reader of a TAP: those of some seconds, because
// an emulator may wait that long for its processor. The kernel's default is 500.
const tapFrames = 8192

// Segment is an Ethernet segment: a bridge without multicast snooping in its own
// namespace. Only one goroutine at a time may add hosts and TAPs.
type Segment struct {
	*Namespace
	mtu   int // of every port, in bytes
	ports int // created so far
}

// NewSegment creates an empty segment with the given MTU.
func NewSegment(tb testing.TB, mtu int) *Segment {
	tb.Helper()
	s := &Segment{Namespace: New(tb), mtu: mtu}
	s.Run("ip", "link", "add", bridge, "mtu", fmt.Sprint(mtu), "type", "bridge", "mcast_snooping", "0")
	s.setUp(bridge)
	return s
}

// MTU returns the MTU of the segment, in bytes.
func (s *Segment) MTU() int { return s.mtu }

// Host creates a namespace whose [Dev] is on the segment and has the addresses of host i,
// usable at once.
func (s *Segment) Host(i int) *Namespace {
	s.tb.Helper()
	host, port := New(s.tb), s.nextPort()
	Veth(s.tb, host, Dev, s.Namespace, port, s.mtu)
	s.plug(port)
	host.addAddrs(i)
	return host
}

// Tap creates a TAP on the segment and returns its queue, for example for the network
// interface of a virtual machine. The queue carries Ethernet frames with a virtio header.
// It holds [tapFrames]. The caller closes the file. The TAP disappears with its last descriptor.
func (s *Segment) Tap() *os.File {
	s.tb.Helper()
	port := s.nextPort()
	file := s.Namespace.Tap(port)
	s.Run("ip", "link", "set", port, "mtu", fmt.Sprint(s.mtu), "txqueuelen", fmt.Sprint(tapFrames))
	s.plug(port)
	s.setUp(port)
	return file
}

// Capture is [Namespace.Capture] for every frame that crosses the segment.
func (s *Segment) Capture(filter, path string) *Capture {
	s.tb.Helper()
	return s.Namespace.Capture(bridge, filter, path)
}

func (s *Segment) nextPort() string {
	name := fmt.Sprintf("port%d", s.ports)
	s.ports++
	return name
}

func (s *Segment) plug(port string) {
	s.tb.Helper()
	s.Run("ip", "link", "set", port, "master", bridge)
}

// Tap creates a TAP in the namespace and returns its queue, as [Segment.Tap] does. Its
// reader has no offloads: each frame that it reads is one packet with complete checksums. The
// caller sets the TAP up.
func (ns *Namespace) Tap(name string) *os.File {
	ns.tb.Helper()
	var file *os.File
	ns.Do(func() {
		var err error
		file, err = openTap(name)
		must(ns.tb, "create a TAP", err)
	})
	return file
}

// openTap creates a TAP in the thread's network namespace (linux/if_tun.h).
func openTap(name string) (*os.File, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open /dev/net/tun", err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("ioctl TUNSETIFF", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
