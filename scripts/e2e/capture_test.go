package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/link/linktest/nstest"
)

// capture is a tcpdump on a host's underlay: a witness that knows nothing of
// the daemon.
type capture struct {
	tb   testing.TB
	path string
	cmd  *exec.Cmd
	log  *logBuffer
}

// captureLimit bounds how long tcpdump takes to start and to end.
const captureLimit = 10 * time.Second

// capture records every datagram of RoCEv2 on the host's underlay until stop.
func (h *host) capture() *capture {
	h.tb.Helper()
	c := &capture{tb: h.tb, path: filepath.Join(h.dir, "underlay.pcap"), log: &logBuffer{}}
	c.cmd = h.Command("tcpdump", "-i", nstest.Dev, "-B", "65536", "--immediate-mode", "-U", "-Z", "root", "-w", c.path, "udp and dst port 4791")
	c.cmd.Stderr = c.log
	if err := c.cmd.Start(); err != nil {
		h.tb.Fatalf("start tcpdump (Debian package tcpdump): %v", err)
	}
	eventually(h.tb, captureLimit, "tcpdump listens", func() bool { return strings.Contains(c.log.String(), "listening on") })
	return c
}

// stop ends the capture; one that lost a packet is no witness.
func (c *capture) stop() {
	c.tb.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		c.tb.Fatalf("stop tcpdump: %v", err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.tb.Fatalf("tcpdump: %v\n%s", err, c.log)
	}
	if !strings.Contains(c.log.String(), "\n0 packets dropped by kernel") {
		c.tb.Fatalf("the capture is not complete:\n%s", c.log)
	}
}

// datagrams counts the datagrams by source address.
func (c *capture) datagrams() map[netip.Addr]uint64 {
	c.tb.Helper()
	text, err := os.ReadFile(c.path)
	if err != nil {
		c.tb.Fatal(err)
	}
	r, err := pcapgo.NewReader(bytes.NewReader(text))
	if err != nil {
		c.tb.Fatalf("read %s: %v", c.path, err)
	}
	count := map[netip.Addr]uint64{}
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			c.tb.Fatalf("read %s: %v", c.path, err)
		}
		count[sourceOf(c.tb, data)]++
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
