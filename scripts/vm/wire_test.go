package vm

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// roceFilter lets RoCEv2 through, whole or in fragments' first part.
const roceFilter = "udp and dst port 4791"

// wire is what a capture has of RoCEv2, by sender.
type wire map[netip.Addr]int

// verifyWire checks that every frame of a capture is a UD SEND whose ICRC matches
// with the identification that its IP header has, and counts them.
func verifyWire(tb testing.TB, c *nstest.Capture) wire {
	tb.Helper()
	file, err := os.Open(c.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	r, err := pcapgo.NewReader(file)
	if err != nil {
		tb.Fatalf("read %s: %v", c.Path, err)
	}
	w := wire{}
	for n := 0; ; n++ {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return w
		}
		if err != nil {
			tb.Fatalf("read %s: %v", c.Path, err)
		}
		path, datagram := dissect(tb, data)
		w[path.Src]++
		if match, _ := roce.Verify(&path, true, datagram); match != roce.MatchKnownID {
			tb.Errorf("frame %d from %v: its ICRC does not match: % x", n, path.Src, data)
		}
		if _, err := roce.ParseUDSend(datagram); err != nil {
			tb.Errorf("frame %d from %v: %v", n, path.Src, err)
		}
	}
}

// dissect takes a frame of RoCEv2 apart.
func dissect(tb testing.TB, data []byte) (roce.Path, []byte) {
	tb.Helper()
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || packet.ErrorLayer() != nil {
		tb.Fatalf("no UDP datagram: %v", packet)
	}
	path := roce.Path{SrcPort: uint16(udp.SrcPort)}
	if ip, ok := packet.NetworkLayer().(*layers.IPv4); ok {
		path.ID = ip.Id
	}
	flow := packet.NetworkLayer().NetworkFlow()
	path.Src, _ = netip.AddrFromSlice(flow.Src().Raw())
	path.Dst, _ = netip.AddrFromSlice(flow.Dst().Raw())
	return path, udp.Payload
}
