package link

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/ethtool"
)

// Offloads is the work that the host leaves to the reader of its frames (TUN_F_*,
// linux/if_tun.h). The virtio header of a frame describes the work that it needs.
type Offloads uint32

// The offloads. TUN_F_TSO_ECN is omitted on purpose: in a frame with CWR the segments differ,
// so the host should cut it.
const (
	OffloadCsum Offloads = unix.TUN_F_CSUM // checksums; all others require it
	OffloadTSO4 Offloads = unix.TUN_F_TSO4 // segmentation of TCP over IPv4
	OffloadTSO6 Offloads = unix.TUN_F_TSO6
	OffloadUSO4 Offloads = unix.TUN_F_USO4 // segmentation of UDP; the kernel accepts only both or none (Linux 6.2)
	OffloadUSO6 Offloads = unix.TUN_F_USO6

	OffloadTSO = OffloadTSO4 | OffloadTSO6
	OffloadUSO = OffloadUSO4 | OffloadUSO6
	// AllOffloads are all offloads that a reader may take over.
	AllOffloads = OffloadCsum | OffloadTSO | OffloadUSO

	offloadECN Offloads = unix.TUN_F_TSO_ECN // only another process can have set it
)

// MaxFrame is the length of the longest frame that a read returns with offloads. The kernel
// itself cuts Ethernet frames of 65,536 bytes and more (gso_features_check,
// GSO_LEGACY_MAX_SIZE), which is also the highest limit that it lets a host set for a TAP.
const MaxFrame = HeaderLen + 65535

func (o Offloads) String() string {
	var names []string
	for _, n := range offloadNames {
		if o&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}

var offloadNames = []struct {
	bit  Offloads
	name string
}{
	{OffloadCsum, "csum"},
	{OffloadTSO4, "tso4"},
	{OffloadTSO6, "tso6"},
	{OffloadUSO4, "uso4"},
	{OffloadUSO6, "uso6"},
	{offloadECN, "ecn"},
}

// featureOffloads are the offloads of a TAP by the names of their features.
var featureOffloads = map[string]Offloads{
	"tx-checksum-ip-generic":  OffloadCsum,
	"tx-tcp-segmentation":     OffloadTSO4,
	"tx-tcp6-segmentation":    OffloadTSO6,
	"tx-udp-segmentation":     OffloadUSO,
	"tx-tcp-ecn-segmentation": offloadECN,
}

// Possible returns the largest subset of the offloads that a kernel can accept.
func (o Offloads) Possible() Offloads {
	o &= AllOffloads
	if o&OffloadCsum == 0 {
		return 0
	}
	if o&OffloadUSO != OffloadUSO {
		o &^= OffloadUSO
	}
	return o
}

// less returns the offloads to try next if the kernel does not support some of them. It removes
// those first that the kernel introduced last.
func (o Offloads) less() Offloads {
	switch {
	case o&OffloadUSO != 0:
		return o &^ OffloadUSO
	case o&OffloadTSO != 0:
		return o &^ OffloadTSO
	}
	return 0
}

// SetOffloads implements [Device]. It also adapts the length of the queue of frames from the
// host to the size of those frames, unless the host has set another one.
func (t *TAP) SetOffloads(want Offloads) (got Offloads, err error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	err = t.tun.control(func(fd int) (err error) { got, err = setOffloads(fd, want); return err })
	if err == nil {
		t.offloads = got
		err = t.dev.visit(func(r *rtnl, l netlink.Link) error { return t.lens.fit(r, l, got) })
	}
	if err != nil {
		return t.offloads, fmt.Errorf("set the offloads of %s to %v: %w", t.tun.name, want, t.tun.ioError(err))
	}
	return got, nil
}

// setOffloads sets the offloads of a device, as many as the kernel accepts.
func setOffloads(fd int, want Offloads) (got Offloads, err error) {
	for got = want.Possible(); ; got = got.less() {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(got))
		if got == 0 || !errors.Is(err, unix.EINVAL) {
			return got, os.NewSyscallError("TUNSETOFFLOAD", err)
		}
	}
}

// offloads returns the offloads of an interface that are on.
func (r *rtnl) offloads(name string) (on Offloads, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket.Socket == nil {
		return 0, ErrClosed
	}
	features, err := ethtool.Active(r.socket.Socket.GetFd(), name)
	for _, f := range features {
		on |= featureOffloads[f]
	}
	return on, err
}

// fit switches the length of the queue between that for small and that for large frames,
// unless the host has set another one.
func (q queueLens) fit(r *rtnl, l netlink.Link, o Offloads) error {
	from, to := q.large, q.small
	if o&(OffloadTSO|OffloadUSO) != 0 {
		from, to = to, from
	}
	if from == to || l.Attrs().TxQLen != from {
		return nil
	}
	if err := r.setLink(l.Attrs().Index, uint32Attr(unix.IFLA_TXQLEN, uint32(to))); err != nil {
		return fmt.Errorf("set transmit queue length to %d: %w", to, err)
	}
	return nil
}
