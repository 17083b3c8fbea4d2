package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// witness counts the datagrams of a host's underlay, as tcpdump sees them.
type witness struct{ in, out *tcpdump }

func newWitness(h *host) *witness {
	h.tb.Helper()
	return &witness{in: startTCPDump(h, "in"), out: startTCPDump(h, "out")}
}

// stop returns how many datagrams came and went.
func (w *witness) stop() (in, out uint64) { return w.in.stop(), w.out.stop() }

// tcpdump captures one direction.
type tcpdump struct {
	tb  testing.TB
	cmd *exec.Cmd
	log string // path of what it says
}

func startTCPDump(h *host, direction string) *tcpdump {
	h.tb.Helper()
	d := &tcpdump{tb: h.tb, log: filepath.Join(h.dir, direction+".log")}
	// 64 MiB of buffer: the capture must not lose what it is to count.
	d.cmd = h.Command("tcpdump", "-i", nstest.Dev, "-Q", direction, "-B", "65536", "-s", "64", "-w", "/dev/null", "udp port 4791")
	log, err := os.Create(d.log)
	if err != nil {
		h.tb.Fatal(err)
	}
	defer log.Close()
	d.cmd.Stderr = log
	if err := d.cmd.Start(); err != nil {
		h.tb.Fatalf("start tcpdump: %v", err)
	}
	eventually(h.tb, startLimit, "tcpdump listens", func() bool { return strings.Contains(d.said(), "listening on") })
	return d
}

func (d *tcpdump) said() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		d.tb.Fatal(err)
	}
	return string(text)
}

var capturedRE = regexp.MustCompile(`(\d+) packets? captured\n(\d+) packets? received by filter\n0 packets dropped by kernel`)

// stop ends the capture and returns how many packets it has, all of them.
func (d *tcpdump) stop() uint64 {
	d.tb.Helper()
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		d.tb.Fatalf("stop tcpdump: %v", err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.tb.Fatalf("tcpdump: %v\n%s", err, d.said())
	}
	m := capturedRE.FindStringSubmatch(d.said())
	if m == nil {
		d.tb.Fatalf("the capture is not complete:\n%s", d.said())
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		d.tb.Fatal(err)
	}
	return n
}
