package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/link/linktest/nstest"
)

// capture is a packet capture on a host's underlay.
type capture struct{ *nstest.Capture }

// capture records all RoCEv2 datagrams on the host's underlay until Stop.
func (h *host) capture() *capture {
	h.tb.Helper()
	path := filepath.Join(h.dir, "underlay.pcap")
	return &capture{h.Capture(nstest.Dev, "udp and dst port 4791", path)}
}

// datagrams counts the datagrams by source address.
func (c *capture) datagrams(tb testing.TB) map[netip.Addr]uint64 {
	tb.Helper()
	return c.datagramsBetween(tb, time.Time{}, time.Now())
}

// datagramsBetween counts those that were captured after one time and before another.
func (c *capture) datagramsBetween(tb testing.TB, from, to time.Time) map[netip.Addr]uint64 {
	tb.Helper()
	text, err := os.ReadFile(c.Path)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := pcapgo.NewReader(bytes.NewReader(text))
	if err != nil {
		tb.Fatalf("read %s: %v", c.Path, err)
	}
	count := map[netip.Addr]uint64{}
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			tb.Fatalf("read %s: %v", c.Path, err)
		}
		if info.Timestamp.After(from) && info.Timestamp.Before(to) {
			count[sourceOf(tb, data)]++
		}
	}
}

func sourceOf(tb testing.TB, data []byte) netip.Addr {
	tb.Helper()
	p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Lazy)
	if p.NetworkLayer() == nil {
		tb.Fatalf("no IP packet: % x (ethertype %04x)", data, binary.BigEndian.Uint16(data[12:]))
	}
	addr, ok := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
	if !ok {
		tb.Fatalf("no address in % x", data)
	}
	return addr
}
