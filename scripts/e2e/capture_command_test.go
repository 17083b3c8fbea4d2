package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/link/linktest/nstest"
)

// stacks are the protocols that tshark must find below the packet of the host, by level.
var stacks = map[string]string{
	"ethernet":   "eth:ethertype:",
	"ipoib":      "ipoib:",
	"roce":       "raw:ip:udp:infiniband:ethertype:",
	"infiniband": "erf:infiniband:ethertype:",
}

const ipv6Stack = "raw:ipv6:udp:infiniband:ethertype:"

// recording is a running 'ipoibd capture'.
type recording struct {
	tb     testing.TB
	cmd    *exec.Cmd
	path   string
	stderr *logBuffer
}

// record starts a capture to a file, and returns once the daemon has begun the file.
func (h *host) record(args ...string) *recording {
	h.tb.Helper()
	r := &recording{tb: h.tb, path: filepath.Join(h.tb.TempDir(), "capture.pcapng"), stderr: &logBuffer{}}
	r.cmd = h.daemon.command(append([]string{"capture", "--write", r.path}, args...)...)
	r.cmd.Stderr = r.stderr
	if err := r.cmd.Start(); err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { _ = r.cmd.Process.Kill() }) // it may have ended
	eventually(h.tb, startLimit, "the capture begins", func() bool {
		st, err := os.Stat(r.path)
		return err == nil && st.Size() > 0
	})
	return r
}

// stop ends the capture as an operator does, and returns the file.
func (r *recording) stop() *captured {
	r.tb.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		r.tb.Fatal(err)
	}
	return r.wait()
}

// wait waits until the capture has ended, and returns the file.
func (r *recording) wait() *captured {
	r.tb.Helper()
	if err := r.cmd.Wait(); err != nil {
		r.tb.Fatalf("ipoibd capture: %v\n%s", err, r.stderr)
	}
	c := readCapture(r.tb, r.path)
	if want := fmt.Sprintf("%d packets captured, %d lost", c.packets, c.lost); !strings.Contains(r.stderr.String(), want) {
		r.tb.Errorf("the command reports %q, the file has %s", r.stderr, want)
	}
	return c
}

// captured is a capture file as read by another implementation.
type captured struct {
	path           string
	packets        int
	lost, received uint64 // from the statistics
	in, out        uint64 // packets by direction
	sizes          map[int]int
	partial        bool // it has frames of the TAP, whose checksums the host leaves to the device
}

func readCapture(tb testing.TB, path string) *captured {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	options := pcapgo.DefaultNgReaderOptions
	options.WantMixedLinkType = true
	r, err := pcapgo.NewNgReader(bytes.NewReader(text), options)
	if err != nil {
		tb.Fatal(err)
	}
	c := &captured{path: path, sizes: map[int]int{}}
	for {
		data, _, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			tb.Fatalf("read %s: %v", path, err)
		}
		c.packets++
		c.sizes[len(data)]++
		if opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound {
			c.out++
		} else {
			c.in++
		}
	}
	for i := range r.NInterfaces() {
		it, err := r.Interface(i)
		if err != nil {
			tb.Fatal(err)
		}
		c.partial = c.partial || it.LinkType == layers.LinkTypeEthernet
		if it.Statistics.EndTime.IsZero() {
			tb.Errorf("%s: interface %s has no statistics: the file is incomplete", path, it.Name)
		}
		c.lost += it.Statistics.PacketsDropped
		c.received += it.Statistics.PacketsReceived
	}
	if c.received != c.lost+uint64(c.packets) {
		tb.Errorf("%s: %d packets and %d lost, but %d received", path, c.packets, c.lost, c.received)
	}
	return c
}

// decode has tshark print fields of the packets that match a display filter.
func (c *captured) decode(t *testing.T, match string, fields ...string) []string {
	t.Helper()
	args := []string{
		"-n", "-r", c.path, "-Y", match, "-T", "fields",
		"--disable-protocol", "infiniband.eoib", // it claims empty payloads and then misses its header
		"-d", "tcp.port==5201,data", "-d", "udp.port==5201,data", // else random payload is taken for other protocols
	}
	if !c.partial {
		args = append(args, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE")
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out := lines(t, tshark, args...)
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// requireClean checks that tshark has no complaint. Errors of TCP's analysis, such as a packet
// that was lost for the capture, are notes and warnings.
func (c *captured) requireClean(t *testing.T) {
	t.Helper()
	if bad := c.decode(t, "_ws.malformed || _ws.expert.severity == error", "frame.number", "frame.protocols", "_ws.expert"); len(bad) > 0 {
		t.Errorf("tshark complains about %d packets, first: %s", len(bad), bad[0])
	}
}

// tshark decodes a capture at each level, over both families of the underlay, without a
// complaint; the ICRCs are those that scapy computes.
func TestCaptureLevels(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for name, gid := range map[string]func(int) string{"IPv4": nstest.IPv4, "IPv6": nstest.IPv6} {
		t.Run(name, func(t *testing.T) {
			hosts := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			a.join("--gid", gid(0))
			b.join("--gid", gid(1))
			recordings := map[string]*recording{}
			for level := range stacks {
				recordings[level] = a.record("--level", level)
			}
			pingAll(a, b)
			for _, dst := range []string{b.ip4(), b.ip6()} {
				for _, how := range [][]string{{"--bytes", "1M"}, {"--bytes", "1M", "--reverse"}, {"--bytes", "200K", "--udp", "--bitrate", "20M", "--length", "1200"}} {
					a.iperf3(b, append([]string{"--client", dst}, how...)...)
				}
			}
			ends := []uint32{uint32(a.qp().QPN), uint32(b.qp().QPN)}
			for level, r := range recordings {
				c := r.stop()
				c.requireClean(t)
				below := stacks[level]
				if level == "roce" && name == "IPv6" {
					below = ipv6Stack
				}
				c.requireStacks(t, level, below)
				if level == "roce" || level == "infiniband" {
					c.requireAddressed(t, ends)
				}
				if level == "roce" {
					c.requireICRC(t)
				}
				t.Logf("%s: %d packets, %d of them in, %d lost; largest %d bytes", level, c.packets, c.in, c.lost, slices.Max(sizesOf(c)))
			}
		})
	}
}

// requireStacks checks that the capture has each of the host's protocols below the level's.
func (c *captured) requireStacks(t *testing.T, level, below string) {
	t.Helper()
	found := map[string]int{}
	packets := c.decode(t, "frame", "frame.protocols")
	for _, inner := range []string{"ip:icmp", "ipv6:icmpv6", "ip:tcp", "ipv6:tcp", "ip:udp", "ipv6:udp"} {
		for _, p := range packets {
			if strings.HasPrefix(p, below+inner) {
				found[inner]++
			}
		}
		if found[inner] == 0 {
			t.Errorf("%s: no %s", level, below+inner)
		}
	}
	if len(packets) != c.packets {
		t.Errorf("%s: tshark finds %d packets, there are %d", level, len(packets), c.packets)
	}
}

func sizesOf(c *captured) (out []int) {
	for n := range c.sizes {
		out = append(out, n)
	}
	return out
}

// requireAddressed checks that each packet is a UD SEND between the queue pairs, or to a group,
// with the interface's P_Key.
func (c *captured) requireAddressed(t *testing.T, ends []uint32) {
	t.Helper()
	for i, line := range c.decode(t, "frame", "infiniband.bth.opcode", "infiniband.bth.p_key", "infiniband.deth.srcqp", "infiniband.bth.destqp") {
		f := strings.Fields(line)
		if len(f) != 4 {
			t.Fatalf("packet %d has only %q", i, line)
		}
		from, to := number(t, f[2]), number(t, f[3])
		if number(t, f[0]) != udSend || number(t, f[1]) != 0xffff || !slices.Contains(ends, from) || to != group && !slices.Contains(ends, to) {
			t.Fatalf("packet %d: %q is not a UD SEND of %x", i, line, ends)
		}
	}
}

// requireICRC compares the ICRCs of a capture at the RoCE level with those of a witness, which
// reads frames of Ethernet.
func (c *captured) requireICRC(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "frames.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(c.path)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	r, err := pcapgo.NewNgReader(text, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	const most = 300 // scapy is slow
	for len(want) < most {
		data, _, err := r.ReadPacketData()
		if err != nil {
			break
		}
		want = append(want, fmt.Sprintf("%x", data[len(data)-4:]))
		data = append(make([]byte, 14), data...)
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(data), Length: len(data)}, data); err != nil {
			t.Fatal(err)
		}
	}
	if got := lines(t, python, icrc, path); !slices.Equal(got, want) {
		t.Errorf("ICRCs differ from those of scapy: %d packets", len(want))
	}
	if len(want) < 50 {
		t.Errorf("only %d packets", len(want))
	}
}

// messages returns how many messages an interface has sent and received, and how many frames
// it has read and written. What a device joins counts once.
func (b book) passed(level string) (out, in uint64) {
	if level == "ethernet" {
		return b.of("tx_read"), b.of("tap_written")
	}
	return b.of("tx_posts", "tx_segments") - b.of("tx_large"), b.of("rx_received")
}

// At full speed, every packet that the interface counts is captured or counted as lost. A reader
// that takes nothing loses packets, but traffic continues.
func TestCaptureUnderLoad(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	seconds := form("1", "10")
	without := a.throughput(b, seconds)
	for _, tt := range []struct{ name, level string }{
		{"ethernet", "ethernet"},
		{"roce", "roce"},
		{"roce, snaplen 128", "roce"},
		{"a reader that takes nothing", "roce"},
	} {
		args := []string{"--level", tt.level}
		if strings.Contains(tt.name, "snaplen") {
			args = append(args, "--snaplen", "128")
		}
		first := a.book()
		var r *recording
		var pipe io.ReadCloser
		if strings.HasPrefix(tt.name, "a reader") {
			r, pipe = a.recordToPipe(args...)
		} else {
			r = a.record(args...)
		}
		begun := a.book()
		with := a.throughput(b, seconds)
		ending := a.book()
		if pipe != nil {
			r.drain(pipe)
		}
		c := r.stop()
		last := a.book()
		// What passes while the capture begins and ends may be in it or not.
		o1, i1 := first.passed(tt.level)
		o2, i2 := begun.passed(tt.level)
		o3, i3 := ending.passed(tt.level)
		o4, i4 := last.passed(tt.level)
		if least, most := o3+i3-o2-i2, o4+i4-o1-i1; c.received < least || c.received > most {
			t.Errorf("%s: %d captured and %d lost, the interface counts %d to %d", tt.name, c.packets, c.lost, least, most)
		}
		t.Logf("%s: %.0f Mbit/s, %.0f without; %d packets captured, %d lost", tt.name, with, without, c.packets, c.lost)
		if pipe != nil && (c.lost == 0 || with == 0) {
			t.Errorf("%s: %d lost at %.0f Mbit/s", tt.name, c.lost, with)
		}
	}
}

// recordToPipe starts a capture to a pipe from which nothing is read yet.
func (h *host) recordToPipe(args ...string) (*recording, io.ReadCloser) {
	h.tb.Helper()
	r := &recording{tb: h.tb, path: filepath.Join(h.tb.TempDir(), "capture.pcapng"), stderr: &logBuffer{}}
	r.cmd = h.daemon.command(append([]string{"capture"}, args...)...)
	r.cmd.Stderr = r.stderr
	pipe, err := r.cmd.StdoutPipe()
	if err != nil {
		h.tb.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { _ = r.cmd.Process.Kill() }) // it may have ended
	first := make([]byte, 1)
	if _, err := io.ReadFull(pipe, first); err != nil {
		h.tb.Fatal(err)
	}
	if err := os.WriteFile(r.path, first, 0o600); err != nil {
		h.tb.Fatal(err)
	}
	return r, pipe
}

// drain copies the rest of a pipe to the file of a recording, until the capture ends.
func (r *recording) drain(pipe io.Reader) {
	file, err := os.OpenFile(r.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		r.tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(file, pipe) // an incomplete file shows as such
		file.Close()
	}()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		r.tb.Fatal(err)
	}
	<-done
}

// A capture outlives resets of the queue pair and of the device; it ends completely with the
// daemon.
func TestCaptureAcrossResets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	r := a.record("--level", "roce,ethernet")
	qpns := []string{fmt.Sprintf("%#08x", uint32(a.qp().QPN))}
	for _, scope := range []string{"qp", "cq", "device"} {
		if out, err := a.daemon.command("reset", scope, "--wait").CombinedOutput(); err != nil {
			t.Fatalf("reset %s: %v\n%s", scope, err, out)
		}
		a.waitReaches(b)
		a.ping(b)
		qpns = append(qpns, fmt.Sprintf("%#08x", uint32(a.qp().QPN)))
	}
	a.daemon.stop()
	c := r.wait()
	c.requireClean(t)
	for _, qpn := range slices.Compact(qpns) {
		n := len(c.decode(t, "icmp.type == 8 && infiniband.deth.srcqp == "+qpn, "frame.number"))
		t.Logf("%d echo requests from QP %s", n, qpn)
		if n == 0 {
			t.Errorf("no echo request from QP %s", qpn)
		}
	}
	if len(slices.Compact(qpns)) == 1 {
		t.Error("no reset changed the QPN, so the test proves less than it should")
	}
}

// The commands of docs/capture.md: a live pipe, filters, limits; and what is refused.
func TestCaptureCommand(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	ping := func() {
		t.Helper()
		a.background("ping", "-n", "-q", "-i", "0.05", b.ip4())
	}
	ping()
	shell := func(script string) string {
		t.Helper()
		cmd := a.Command("sh", "-ec", script)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(os.Getenv(daemonEnv))+":"+os.Getenv("PATH"), "IPOIBD_CONTROL="+a.daemon.control, "HOME="+t.TempDir())
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return string(out)
	}
	live := shell(`ipoibd capture --level infiniband --filter icmp --count 4 | tshark -n -r - -T fields -e frame.protocols`)
	if n := strings.Count(live, "erf:infiniband:ethertype:ip:icmp"); n != 4 {
		t.Errorf("%d of 4 packets are ICMP over InfiniBand:\n%s", n, live)
	}
	var file string
	var c *captured
	eventually(t, repairLimit, "a packet arrives during a capture", func() bool {
		file = filepath.Join(t.TempDir(), "a.pcapng")
		shell(`ipoibd capture --bpf "$(tcpdump -y EN10MB -ddd "src host ` + b.ip4() + `")" --snaplen 96 --direction in --duration 500ms --write ` + file)
		c = readCapture(t, file)
		return c.packets > 0
	})
	if c.in == 0 || c.out != 0 || slices.Max(sizesOf(c)) > 96 {
		t.Errorf("%d packets in, %d out, sizes %v", c.in, c.out, c.sizes)
	}
	c.requireClean(t)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v %v", st.Mode(), err)
	}
	for want, args := range map[string][]string{
		`unknown level "udp"`:    {"--level", "udp"},
		`no interface "ib9"`:     {"--interface", "ib9"},
		"cannot compile":         {"--filter", "nonsense here"},
		"snapshot length 1":      {"--snaplen", "1"},
		"no such file":           {"--write", "/nowhere/file", "--count", "1"},
		"none of the others can": {"--filter", "icmp", "--bpf", "1,6 0 0 1"},
	} {
		out, err := a.daemon.command(append([]string{"capture"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("capture %v: %v, %s, want %q", args, err, out, want)
		}
	}
	// A client that is killed frees its place.
	for range 6 {
		r := a.record()
		if err := r.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = r.cmd.Wait() // it was killed
		time.Sleep(50 * time.Millisecond)
	}
	a.ping(b)
}
