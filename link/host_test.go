package link_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest"
)

const testMAC = "\x02\x00\x00\x00\x00\x07"

func spec(name string) link.Spec {
	return link.Spec{Name: name, MAC: [6]byte([]byte(testMAC)), MTU: 1500, TxQueueLen: 500}
}

// openTAP opens an interface for a test and removes it when the test ends.
func openTAP(tb testing.TB, s link.Spec) (tap *link.TAP, adopted bool) {
	tb.Helper()
	tap, adopted, err := link.Open(s)
	if err != nil {
		tb.Fatalf("open: %v", err)
	}
	tb.Cleanup(func() {
		if err := tap.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
		if err := link.Delete(s.Name); err != nil && !errors.Is(err, link.ErrNotFound) {
			tb.Errorf("delete: %v", err)
		}
	})
	return tap, adopted
}

// openUp opens ib0, up and with carrier.
func openUp(t *testing.T) (*link.TAP, *host) {
	t.Helper()
	tap, _ := openTAP(t, spec("ib0"))
	h := newHost(t)
	h.SetUp(true)
	must(t, tap.SetCarrier(true))
	return tap, h
}

// host is the real host behind ib0: rtnetlink and a packet socket.
type host struct {
	tb   testing.TB
	link netlink.Link
	file *os.File
	conn syscall.RawConn

	running bool // seen once
}

var _ linktest.Host = (*host)(nil)

func newHost(tb testing.TB) *host {
	tb.Helper()
	l, err := netlink.LinkByName("ib0")
	must(tb, err)
	must(tb, netlink.LinkSetIP6AddrGenMode(l, nl.IN6_ADDR_GEN_MODE_NONE))
	proto := uint16(linktest.EtherType&0xff<<8 | linktest.EtherType>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(proto))
	must(tb, err)
	must(tb, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: l.Attrs().Index}))
	// Binding to an interface that is down leaves ENETDOWN for the next call.
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	must(tb, err)
	h := &host{tb: tb, link: l, file: os.NewFile(uintptr(fd), "packet")}
	h.conn, err = h.file.SyscallConn()
	must(tb, err)
	tb.Cleanup(func() { h.file.Close() })
	return h
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func (h *host) SetUp(up bool) {
	h.tb.Helper()
	if up {
		must(h.tb, netlink.LinkSetUp(h.link))
	} else {
		must(h.tb, netlink.LinkSetDown(h.link))
	}
}

func (h *host) SetMTU(mtu int)         { must(h.tb, netlink.LinkSetMTU(h.link, mtu)) }
func (h *host) SetMAC(mac [6]byte)     { must(h.tb, netlink.LinkSetHardwareAddr(h.link, mac[:])) }
func (h *host) Delete()                { must(h.tb, netlink.LinkDel(h.link)) }
func (h *host) AddAddr(p netip.Prefix) { must(h.tb, netlink.AddrAdd(h.link, addrOf(h.tb, p))) }
func (h *host) DelAddr(p netip.Prefix) { must(h.tb, netlink.AddrDel(h.link, addrOf(h.tb, p))) }

func addrOf(tb testing.TB, p netip.Prefix) *netlink.Addr {
	tb.Helper()
	a, err := netlink.ParseAddr(p.String())
	must(tb, err)
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func (h *host) Attach() linktest.Queue {
	h.tb.Helper()
	fd, err := openTun()
	must(h.tb, err)
	must(h.tb, attach(fd, "ib0"))
	return &queue{tb: h.tb, fd: fd}
}

// queue is attached to ib0 in addition to the queue of the TAP under test.
type queue struct {
	tb testing.TB
	fd int
}

func (q *queue) SetHeaderLen(n int) {
	must(q.tb, unix.IoctlSetPointerInt(q.fd, unix.TUNSETVNETHDRSZ, n))
}

func (q *queue) SetPersistent(on bool) {
	must(q.tb, unix.IoctlSetInt(q.fd, unix.TUNSETPERSIST, map[bool]int{true: 1}[on]))
}

func (q *queue) SetCarrier(on bool) {
	must(q.tb, unix.IoctlSetPointerInt(q.fd, unix.TUNSETCARRIER, map[bool]int{true: 1}[on]))
}

func (q *queue) SetOffloads(o link.Offloads) {
	must(q.tb, unix.IoctlSetInt(q.fd, unix.TUNSETOFFLOAD, int(o)))
}

func (q *queue) Detach() { must(q.tb, unix.Close(q.fd)) }

// Send waits until the interface is running, then sends. Its queueing discipline starts
// shortly after the carrier is up, and drops earlier frames.
func (h *host) Send(frame []byte) {
	h.tb.Helper()
	h.awaitRunning()
	var sendErr error
	err := h.conn.Write(func(fd uintptr) bool {
		to := &unix.SockaddrLinklayer{Ifindex: h.link.Attrs().Index}
		sendErr = unix.Sendto(int(fd), frame, 0, to)
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	must(h.tb, errors.Join(err, sendErr))
}

// SendOffloaded sends through a socket of its own, which PACKET_VNET_HDR changes.
func (h *host) SendOffloaded(header [link.HeaderLen]byte, frame []byte) {
	h.tb.Helper()
	h.awaitRunning()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(h.tb, err)
	defer unix.Close(fd)
	must(h.tb, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	to := &unix.SockaddrLinklayer{Protocol: unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8, Ifindex: h.link.Attrs().Index}
	must(h.tb, unix.Sendto(fd, append(header[:], frame...), 0, to))
}

func (h *host) awaitRunning() {
	h.tb.Helper()
	for end := time.Now().Add(20 * time.Second); !h.running; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByIndex(h.link.Attrs().Index)
		must(h.tb, err)
		h.running = l.Attrs().RawFlags&unix.IFF_RUNNING != 0
		if time.Now().After(end) {
			h.tb.Fatalf("%s does not run", h.link.Attrs().Name)
		}
	}
}

func (h *host) Recv(ctx context.Context) ([]byte, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := h.file.SetReadDeadline(deadline); err != nil {
			return nil, err
		}
	}
	buf := make([]byte, 1<<16)
	for {
		n, from, err := h.recvFrom(buf)
		if err != nil {
			return nil, fmt.Errorf("packet socket: %w", err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
			return buf[:n], nil
		}
	}
}

func (h *host) recvFrom(buf []byte) (n int, from unix.Sockaddr, err error) {
	waitErr := h.conn.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(err, unix.EAGAIN)
	})
	return n, from, errors.Join(waitErr, err)
}
