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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/link/linktest/nstest"
)

// capture is a dumpcap on a host's underlay: a witness that knows nothing of the
// daemon. (tcpdump would drop privileges that a user namespace does not have.)
type capture struct {
	tb   testing.TB
	path string
	cmd  *exec.Cmd
	log  *logBuffer
}

const (
	// captureLimit bounds how long dumpcap takes to start.
	captureLimit = 10 * time.Second
	// captureFlush is how long the kernel may keep what it has for dumpcap.
	captureFlush = time.Second
)

// capture records every datagram of RoCEv2 on the host's underlay until stop.
func (h *host) capture() *capture {
	h.tb.Helper()
	c := &capture{tb: h.tb, path: filepath.Join(h.dir, "underlay.pcap"), log: &logBuffer{}}
	c.cmd = h.Command("dumpcap", "-q", "-P", "-i", nstest.Dev, "-B", "64", "-f", "udp and dst port 4791", "-w", c.path)
	c.cmd.Stderr = c.log
	if err := c.cmd.Start(); err != nil {
		h.tb.Fatalf("start dumpcap (Debian package tshark): %v", err)
	}
	eventually(h.tb, captureLimit, "dumpcap listens", func() bool { return strings.Contains(c.log.String(), "File: ") })
	return c
}

// stop ends the capture; one that lost a packet is no witness.
func (c *capture) stop() {
	c.tb.Helper()
	time.Sleep(captureFlush)
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		c.tb.Fatalf("stop dumpcap: %v", err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.tb.Fatalf("dumpcap: %v\n%s", err, c.log)
	}
	if !complete.MatchString(c.log.String()) {
		c.tb.Fatalf("the capture is not complete:\n%s", c.log)
	}
}

// complete is what dumpcap says of a capture that lost nothing.
var complete = regexp.MustCompile(`Packets received/dropped .*: \d+/0 `)

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
