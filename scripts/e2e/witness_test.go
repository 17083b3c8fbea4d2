package e2e

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// The witnesses are independent programs that must decode the underlay's frames
// as the daemon intended them. Python has a full path, because scapy is installed
// for that interpreter.
const (
	tshark = "/usr/bin/tshark"                 // Debian package tshark
	python = "/usr/bin/python3"                // python3-scapy
	icrc   = "../../hca/roce/testdata/icrc.py" // prints each frame's ICRC
	udSend = 100                               // BTH opcode, IBA 1.4, table 35: UD SEND only
	group  = 0xffffff                          // destination QPN of multicast
	fields = "infiniband.bth.opcode infiniband.deth.srcqp infiniband.bth.destqp infiniband.invariant.crc _ws.malformed _ws.expert"
)

// Every frame on the underlay, IPv4 or IPv6, is a well-formed UD SEND between the
// QPNs that the status reports, or to a group, and has the ICRC that scapy
// computes, whichever path it took.
func TestWitnesses(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for name, gid := range map[string]func(int) string{"IPv4": nstest.IPv4, "IPv6": nstest.IPv6} {
		for _, path := range []string{slowPath, "--fast-path"} {
			t.Run(name+path, func(t *testing.T) {
				hosts := newHosts(t, 2)
				a, b := hosts[0], hosts[1]
				for _, h := range hosts { // the capture must see the checksums that a wire would carry
					h.Run("ethtool", "-K", nstest.Dev, "tx", "off")
				}
				c := a.capture()
				a.join(path, "--gid", gid(0))
				b.join(path, "--gid", gid(1))
				pingAll(a, b)
				if path != slowPath {
					a.waitFast(b)
				}
				c.Stop()
				c.requireWitnessed(t, uint32(a.qp().QPN), uint32(b.qp().QPN))
			})
		}
	}
}

// requireWitnessed checks the capture with both witnesses.
func (c *capture) requireWitnessed(t *testing.T, a, b uint32) {
	t.Helper()
	frames := c.decode(t)
	icrcs := lines(t, python, icrc, c.Path)
	if len(icrcs) != len(frames) {
		t.Fatalf("%d ICRCs for %d frames", len(icrcs), len(frames))
	}
	var unicast, multicast int
	for i, f := range frames {
		if f.icrc != "0x"+icrcs[i] {
			t.Errorf("frame %d: ICRC %s, scapy computes 0x%s", i, f.icrc, icrcs[i])
		}
		switch {
		case f.opcode != udSend || f.src != a && f.src != b || f.src == f.dst || f.complaint != "":
			t.Errorf("frame %d: %+v is not a UD SEND of QP %#x or %#x", i, f, a, b)
		case f.dst == group:
			multicast++
		case f.dst == a || f.dst == b:
			unicast++
		default:
			t.Errorf("frame %d goes to QP %#x, which does not exist", i, f.dst)
		}
	}
	t.Logf("%d UD SENDs between QP %#x and %#x, %d to a group", unicast, a, b, multicast)
	if unicast == 0 || multicast == 0 {
		t.Error("the capture lacks unicast or multicast")
	}
}

// decoded is a frame as decoded by tshark.
type decoded struct {
	opcode, src, dst uint32
	icrc             string
	complaint        string // malformed, or an expert's note
}

func (c *capture) decode(t *testing.T) (frames []decoded) {
	t.Helper()
	args := []string{"-n", "-r", c.Path, "-T", "fields", "-o", "udp.check_checksum:TRUE"}
	for field := range strings.FieldsSeq(fields) {
		args = append(args, "-e", field)
	}
	for _, line := range lines(t, tshark, args...) {
		f := strings.SplitN(line, "\t", 5)
		if len(f) != 5 {
			t.Fatalf("cannot parse tshark's line %q", line)
		}
		frames = append(frames, decoded{
			opcode: number(t, f[0]), src: number(t, f[1]), dst: number(t, f[2]),
			icrc: f[3], complaint: strings.TrimSpace(f[4]),
		})
	}
	return frames
}

func number(t *testing.T, text string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	return uint32(n)
}

// lines returns the lines that a witness printed.
func lines(t *testing.T, name string, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v (apt-get install tshark python3-scapy)\n%s", name, err, &stderr)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
