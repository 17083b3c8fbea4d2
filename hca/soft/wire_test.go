package soft_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// Every segment of a large send, and every datagram of a train of small ones, is a correct
// UD SEND on the wire: its ICRC is right for the identification that the packet has there.
func TestSegmentsOnTheWireHaveTheirICRC(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	nsA.Run("ethtool", "-K", nstest.Dev, "tx-udp-segmentation", "off") // the kernel cuts the trains
	for name, addr := range map[string]func(int) string{"IPv4": nstest.IPv4, "IPv6": nstest.IPv6} {
		t.Run(name, func(t *testing.T) { segmentsOnTheWire(t, nsA, nsB, addr) })
	}
}

func segmentsOnTheWire(t *testing.T, nsA, nsB *nstest.Namespace, addr func(int) string) {
	a, b := socketHost(t, nsA, addr(0), 1), socketHost(t, nsB, addr(1), 1)
	protocol, is4 := uint16(unix.ETH_P_IPV6), false
	if netip.MustParseAddr(addr(0)).Is4() {
		protocol, is4 = unix.ETH_P_IP, true
	}
	fd := packets(t, nsB, protocol)
	x, y := station.New(t, a.Dev, a.SGIDIndex), station.New(t, b.Dev, b.SGIDIndex)
	const mss, segs, small = 100, 10, 12
	wrs := x.Towards(y, 1+small, mss*segs)
	wrs[0].LSO = hca.LSO{Header: hcatest.TCPHeader(), MSS: mss}
	for i := range small {
		wrs[1+i].SGList[0].Length = 50
	}
	y.PostRecv(y.Receives(segs + small))
	x.PostSend(wrs)
	x.Await(x.Send, len(wrs))
	y.Await(y.Recv, segs+small)
	ids := map[uint16]int{}
	for n := range segs + small {
		p, datagram := readRoCE(t, fd, is4)
		if m := new(roce.Verifier).Verify(&p, true, datagram); m != roce.MatchKnownID {
			t.Errorf("datagram %d of %d bytes with identification %d: ICRC %v", n, len(datagram), p.ID, m)
		}
		if err := new(roce.UDSend).Parse(datagram); err != nil {
			t.Errorf("datagram %d: %v", n, err)
		}
		ids[p.ID]++
	}
	if is4 && (len(ids) != segs+1 || ids[segs] != 2) { // the first small one ends the train of the large send
		t.Errorf("identifications %v: the datagrams did not leave as trains", ids)
	}
}

// packets opens an AF_PACKET socket for IP packets of a namespace's netdev.
func packets(t *testing.T, ns *nstest.Namespace, protocol uint16) (fd int) {
	t.Helper()
	ns.Do(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(protocol<<8|protocol>>8)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	limit := unix.NsecToTimeval(int64(20 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		t.Fatal(err)
	}
	return fd
}

// readRoCE returns the next RoCEv2 packet: its path with the identification, and its
// datagram.
func readRoCE(t *testing.T, fd int, is4 bool) (roce.Path, []byte) {
	t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
			continue
		}
		if err != nil {
			t.Fatalf("capture: %v", err)
		}
		be, ip := binary.BigEndian, 40
		var p roce.Path
		if is4 {
			ip = 20
			p.Src, p.Dst = netip.AddrFrom4([4]byte(buf[12:])), netip.AddrFrom4([4]byte(buf[16:]))
			p.ID = be.Uint16(buf[4:])
		} else {
			p.Src, p.Dst = netip.AddrFrom16([16]byte(buf[8:])), netip.AddrFrom16([16]byte(buf[24:]))
		}
		if n < ip+8 || be.Uint16(buf[ip+2:]) != roce.Port {
			continue
		}
		p.SrcPort = be.Uint16(buf[ip:])
		return p, buf[ip+8 : n]
	}
}
