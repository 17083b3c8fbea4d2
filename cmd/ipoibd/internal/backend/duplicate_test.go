package backend

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// sendARP broadcasts an ARP request of a sender, also with the tag of a VLAN.
func sendARP(t *testing.T, ns *nstest.Namespace, sender net.HardwareAddr, addr netip.Addr, vlan uint16, times int) {
	t.Helper()
	frame := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	frame = append(frame, sender...)
	if vlan != 0 {
		frame = append(frame, 0x81, 0, byte(vlan>>8), byte(vlan))
	}
	frame = append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	frame = append(append(append(frame, sender...), addr.AsSlice()...), make([]byte, 28)...)
	var err error
	ns.Do(func() {
		var dev *net.Interface
		var fd int
		if dev, err = net.InterfaceByName(nstest.Dev); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		for i := 0; i < times && err == nil; i++ {
			err = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6})
		}
	})
	must(t, err)
}

// A host in a VLAN that only shares the cable has its own addresses, and ARP from another
// netdev of this host is no conflict.
func TestNoDuplicateAddress(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	ours := netip.MustParseAddr(nstest.IPv4(0))
	d := duplicates{fd: -1}
	defer d.close()
	a.Do(func() { d.open(nstest.Dev) })
	look := func() (text string) {
		a.Do(func() { text = d.look(time.Now(), []netip.Addr{ours}) })
		return text
	}
	foreign := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	sendARP(t, b, foreign, ours, 7, 1)
	if text := look(); text != "" {
		t.Errorf("ARP of VLAN 7: %s", text)
	}
	a.Run("ip", "link", "add", "second", "address", "02:00:00:00:00:05", "type", "veth")
	sendARP(t, b, net.HardwareAddr{2, 0, 0, 0, 0, 5}, ours, 0, 1)
	if text := look(); text != "" {
		t.Errorf("ARP of another netdev of this host: %s", text)
	}
	sendARP(t, b, foreign, ours, 0, 1)
	if text := look(); text == "" {
		t.Error("another host was not found")
	}
}

// A flood costs little, even on a host with many netdevs: they are not listed for each packet.
func TestDuplicateAddressFlood(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	for i := range 150 {
		a.Run("ip", "link", "add", fmt.Sprintf("d%d", i), "type", "veth")
	}
	ours := netip.MustParseAddr(nstest.IPv4(0))
	d := duplicates{fd: -1}
	defer d.close()
	a.Do(func() { d.open(nstest.Dev) })
	sendARP(t, b, net.HardwareAddr{2, 0, 0, 0, 0, 9}, ours, 0, 2000)
	var list, look time.Duration
	a.Do(func() {
		began := time.Now()
		_, _ = net.Interfaces()
		list = time.Since(began)
		began = time.Now()
		d.look(began, []netip.Addr{ours})
		look = time.Since(began)
	})
	t.Logf("a look took %s, one list of the netdevs %s", look, list)
	if look > 100*list {
		t.Errorf("a look took %s, as long as %d lists of the netdevs", look, look/list)
	}
}

// Someone who sends ARP with another address each second does not fill the log.
func TestDuplicateAddressIsLoggedOnceAMinute(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	var log strings.Builder
	w := watch{log: slog.New(slog.NewTextHandler(&log, nil)), duplicates: duplicates{fd: -1}}
	defer w.duplicates.close()
	e := openEngine(t, a, 0)
	defer e.dev.Close()
	now := time.Now()
	for i := range byte(90) {
		a.Do(func() { w.look(now, e, nstest.Dev) })
		sendARP(t, b, net.HardwareAddr{2, 0, 0, 0, 9, i}, netip.MustParseAddr(nstest.IPv4(0)), 0, 1)
		now = now.Add(time.Second)
	}
	if n := strings.Count(log.String(), "the same underlay address"); n != 2 {
		t.Errorf("logged %d times in 90 s, want 2", n)
	}
}
