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

// roceFilter selects RoCEv2: whole packets and first fragments.
const roceFilter = "udp and dst port 4791"

// wire counts the RoCEv2 frames of a capture by sender.
type wire map[netip.Addr]int

// verifyWire checks that every frame of a capture is a UD SEND whose ICRC matches
// with the identification in its IP header, and counts the frames.
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

// dissect splits a RoCEv2 frame into its path and its payload.
func dissect(tb testing.TB, data []byte) (roce.Path, []byte) {
	tb.Helper()
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || packet.ErrorLayer() != nil {
		tb.Fatalf("not a UDP datagram: %v", packet)
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
