package link

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Inspect implements [Device]. It reads the header length and the persistence from the
// queue; the number of queues, the owner, the MAC, the carrier and the link type from
// netlink; and the offloads from ethtool. It deletes an interface that was lent to a namespace
// whose path is gone, as the kernel deletes one with its namespace.
func (t *TAP) Inspect() (f Findings, err error) {
	t.keep.Lock()
	defer t.keep.Unlock()
	if t.dev.withdrawn() {
		if err := t.dev.visit(func(r *rtnl, l netlink.Link) error { return r.deleteLink(l.Attrs().Index) }); err != nil {
			return f, fmt.Errorf("delete %s: %w", t.tun.name, err)
		}
	}
	if f.Restored, err = t.tun.restore(); err == nil {
		err = t.dev.visit(func(r *rtnl, l netlink.Link) error { return t.inspectLink(r, l, &f) })
	}
	if err != nil {
		return f, fmt.Errorf("inspect %s: %w", t.tun.name, t.tun.ioError(err))
	}
	return f, nil
}

// restore restores the properties that the kernel reports to a queue.
func (t *tun) restore() (out []Change, err error) {
	err = t.control(func(fd int) error {
		size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
		if err != nil {
			return os.NewSyscallError("TUNGETVNETHDRSZ", err)
		}
		if size != HeaderLen {
			if err := setHeaderLen(fd); err != nil {
				return err
			}
			out = append(out, Change{PropertyHeader, fmt.Sprint(size)})
		}
		req, err := unix.NewIfreq(t.name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
			return os.NewSyscallError("TUNGETIFF", err)
		}
		if req.Uint16()&unix.IFF_PERSIST == 0 {
			if err := setPersistent(fd); err != nil {
				return err
			}
			out = append(out, Change{PropertyPersistence, "off"})
		}
		return nil
	})
	return out, err
}

// inspectLink restores the properties that netlink and ethtool report, and those that
// another queue can have changed without a report.
func (t *TAP) inspectLink(r *rtnl, l netlink.Link, f *Findings) error {
	f.Foreign = foreign(l, len(t.tun.queues))
	a := l.Attrs()
	if !owned(l) {
		if err := t.tun.control(setOwner); err != nil {
			return err
		}
		tap := l.(*netlink.Tuntap)
		f.Restored = append(f.Restored, Change{PropertyOwner, fmt.Sprintf("%d:%d", tap.Owner, tap.Group)})
	}
	on, err := r.offloads(a.Name)
	if err != nil {
		return err
	}
	if err := t.tun.control(func(fd int) error { return setUnreported(fd, t.offloads, t.programs) }); err != nil {
		return err
	}
	// A missing offload costs only speed, and ethtool can keep it off permanently. An offload
	// that this process has not set makes the host send frames that it cannot handle.
	if on&^t.offloads != 0 {
		f.Restored = append(f.Restored, Change{PropertyOffloads, on.String()})
	}
	if mac := net.HardwareAddr(t.mac[:]); mac.String() != a.HardwareAddr.String() {
		if err := r.setLink(a.Index, nl.NewRtAttr(unix.IFLA_ADDRESS, mac)); err != nil {
			return fmt.Errorf("set MAC: %w", err)
		}
		f.Restored = append(f.Restored, Change{PropertyMAC, a.HardwareAddr.String()})
	}
	up, carrier := a.RawFlags&unix.IFF_UP != 0, a.RawFlags&unix.IFF_LOWER_UP != 0
	if up && carrier != t.wantCarrier { // an interface that is down does not show its carrier
		if err := t.tun.carrier(t.wantCarrier); err != nil {
			return err
		}
		f.Restored = append(f.Restored, Change{PropertyCarrier, map[bool]string{true: "on", false: "off"}[carrier]})
	}
	sign(r, l)
	f.MTU, f.Carrier = a.MTU, up && t.wantCarrier
	if !isEthernet(l) {
		if err := t.tun.control(setEthernet); err != nil {
			return err
		}
		f.Restored = append(f.Restored, Change{PropertyLinkType, a.EncapType})
	}
	return nil
}
