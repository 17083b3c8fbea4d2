package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Floods, and what they may cost. goalCPU is the goal, in per cent of a core. failCPU is
// far above it, because others use the machine too, and below the 111 % that reading each
// message of junkRate costs.
const (
	junkRate   = 20_000                // netlink messages/s of another process
	floodTick  = 10 * time.Millisecond // of flaps and of changes of an address: 100/s
	fewer      = 5_000                 // addresses of ib0; the kernel takes quadratic time to add them
	addresses  = 35_000                // the same in the long form
	floodShort = 1500 * time.Millisecond
	floodLines = 5 * time.Second // long enough to show a log without limits
	floodLong  = 30 * time.Second
	goalCPU    = 20.0
	failCPU    = 4 * goalCPU

	// The limits of package process: the lines of one message that pass at once, and
	// those that pass per second afterwards.
	lineBurst, lineRate = 10, 2
)

// clockTick is the unit of CPU times in /proc (proc_pid_stat(5), USER_HZ).
const clockTick = 10 * time.Millisecond

// Floods that a container or an operator can cause cost the daemon little and hardly delay
// an honest ping.
func TestFloodsCostLittle(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	a, b := twoJoined(t)
	f := &floods{t: t, a: a, b: b, lasts: form(floodShort, floodLong), addresses: form(fewer, addresses)}
	f.measure("quiet", nil)
	j := f.junk()
	f.measure("netlink messages to the groups", func() { j.send(unix.SockaddrNetlink{Groups: 1 << (unix.RTNLGRP_LINK - 1)}) })
	ports := a.netlinkPorts()
	f.measure("netlink messages to all ports", func() { j.send(ports...) })
	f.measure("flaps of another link", f.flaps("lo"))
	a.Run("ip", "link", "set", "lo", "up")
	f.fill()
	f.measure("very many addresses, one of which comes and goes", f.addressChanges())
	a.Run("ip", "address", "flush", "dev", ifName, "to", "10.45.0.0/16")
	f.lasts = max(f.lasts, floodLines)
	f.measureAlone("flaps of "+ifName, f.flaps(ifName))
	a.Run("ip", "link", "set", ifName, "up")
	a.AddIPv6(ifName, a.ip6()+"/64") // down removes it
	b.waitReaches(a)
	// Until it is announced, b sends to where it was before.
	since := time.Now()
	eventually(t, repairLimit, "the address is reached again", func() bool { return b.Command("ping", "-n", "-c", "1", "-W", "0.2", a.ip6()).Run() == nil })
	t.Logf("its IPv6 address is reached %v later", time.Since(since).Round(time.Millisecond))
	pingAll(a, b)
}

// floods measures floods of host a one after the other, while b pings a.
type floods struct {
	t     *testing.T
	a, b  *host
	lasts time.Duration
	quiet time.Duration // the median of a ping without a flood

	addresses int
}

// measure floods host a by a step each tick.
func (f *floods) measure(what string, step func()) {
	f.t.Helper()
	pings := f.b.Command("ping", "-n", "-i", "0.01", "-w", fmt.Sprint(max(1, int(f.lasts.Seconds()))), f.a.ip4())
	var out strings.Builder
	pings.Stdout = &out
	if err := pings.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.measureAlone(what, step)
	_ = pings.Wait()
	median, n := medianPing(f.t, out.String())
	f.t.Logf("%s: median of %d pings %v", what, n, median)
	switch {
	case step == nil && f.quiet == 0:
		f.quiet = median
	case median > 10*f.quiet: // the goal is 1.5 times, but the machine is shared
		f.t.Errorf("%s: median of pings %v, was %v", what, median, f.quiet)
	}
}

func (f *floods) measureAlone(what string, step func()) {
	f.t.Helper()
	start, before, logged := time.Now(), f.a.cpu(), len(f.a.daemon.log.String())
	tick := time.NewTicker(floodTick) // which leaves out what this process misses while it waits for a processor
	defer tick.Stop()
	for ; time.Since(start) < f.lasts; <-tick.C {
		if step != nil {
			step()
		}
	}
	took := time.Since(start)
	percent := 100 * (f.a.cpu() - before).Seconds() / took.Seconds()
	message, lines := mostFrequent(f.a.daemon.log.String()[logged:])
	limit := lineBurst + int(lineRate*took.Seconds()) + 1
	f.t.Logf("%s: %.1f %% of a core (goal: %v %%, limit: %v %%) in %v, at most %d log lines of one message (limit: %d)",
		what, percent, goalCPU, failCPU, took.Round(time.Millisecond), lines, limit)
	if percent > failCPU {
		f.t.Errorf("%s: %.1f %% of a core, want less than %v %%", what, percent, failCPU)
	}
	if lines > limit {
		f.t.Errorf("%s: %d log lines of%s, want at most %d", what, lines, message, limit)
	}
}

// distinct matches the attributes by which package process distinguishes messages.
var distinct = regexp.MustCompile(` (?:level|msg|interface|device|type|state|reason|property)=(?:"(?:[^"\\]|\\.)*"|\S+)`)

// mostFrequent returns the message with the most lines in a log.
func mostFrequent(log string) (message string, lines int) {
	count := map[string]int{}
	for line := range strings.Lines(log) {
		m := strings.Join(distinct.FindAllString(line, -1), "")
		if count[m]++; count[m] > lines {
			message, lines = m, count[m]
		}
	}
	return message, lines
}

// cpu returns the processor time that the daemon has used.
func (h *host) cpu() time.Duration {
	h.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.tb.Fatal(err)
	}
	field := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, f := range field[11:13] { // utime and stime
		n, err := strconv.Atoi(f)
		if err != nil {
			h.tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

func medianPing(t *testing.T, out string) (time.Duration, int) {
	t.Helper()
	var times []float64
	for _, m := range pingTime.FindAllStringSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, ms)
	}
	if len(times) == 0 {
		t.Fatalf("no ping was answered:\n%s", out)
	}
	slices.Sort(times)
	return time.Duration(times[len(times)/2] * float64(time.Millisecond)), len(times)
}

// junk is a netlink socket of another process on host a.
type junk struct {
	t   *testing.T
	fd  int
	msg []byte
}

// junk returns a socket whose message claims that ib0 has changed.
func (f *floods) junk() *junk {
	f.t.Helper()
	j := &junk{t: f.t, msg: make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)}
	f.a.Do(func() {
		dev, err := net.InterfaceByName(ifName)
		if err == nil {
			j.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		}
		if err != nil {
			f.t.Fatal(err)
		}
		binary.NativeEndian.PutUint32(j.msg, uint32(len(j.msg)))
		binary.NativeEndian.PutUint16(j.msg[4:], unix.RTM_NEWLINK)
		binary.NativeEndian.PutUint32(j.msg[unix.SizeofNlMsghdr+4:], uint32(dev.Index))
	})
	f.t.Cleanup(func() { _ = unix.Close(j.fd) })
	return j
}

// send sends the messages of one tick, to each of the receivers in turn. A receiver may be
// full or refuse them.
func (j *junk) send(to ...unix.SockaddrNetlink) {
	j.t.Helper()
	for i := range int(junkRate * floodTick / time.Second) {
		err := unix.Sendto(j.fd, j.msg, unix.MSG_DONTWAIT, &to[i%len(to)])
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ECONNREFUSED) {
			j.t.Fatalf("send a netlink message: %v", err)
		}
	}
}

// netlinkPorts returns the addresses of the daemon's rtnetlink sockets.
func (h *host) netlinkPorts() (ports []unix.SockaddrNetlink) {
	h.tb.Helper()
	inodes := map[string]bool{}
	dir := fmt.Sprintf("/proc/%d/fd", h.daemon.cmd.Process.Pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		h.tb.Fatal(err)
	}
	for _, fd := range list {
		name, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		inodes[strings.TrimSuffix(strings.TrimPrefix(name, "socket:["), "]")] = true
	}
	for _, line := range strings.Split(h.Run("cat", "/proc/net/netlink"), "\n") {
		f := strings.Fields(line)
		if len(f) == 10 && f[1] == "0" && inodes[f[9]] {
			port, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil {
				h.tb.Fatal(err)
			}
			ports = append(ports, unix.SockaddrNetlink{Pid: uint32(port)})
		}
	}
	if len(ports) == 0 {
		h.tb.Fatal("the daemon has no rtnetlink socket, so the flood would not reach it")
	}
	return ports
}

// flaps returns a step that sets a link down in one tick and up in the next, so the daemon
// sees both states.
func (f *floods) flaps(name string) func() {
	f.t.Helper()
	h, dev := f.handle(name)
	up := true
	return func() {
		change := h.LinkSetUp
		if up {
			change = h.LinkSetDown
		}
		if err := change(dev); err != nil {
			f.t.Fatal(err)
		}
		up = !up
	}
}

// handle returns a netlink socket on host a, and a link there.
func (f *floods) handle(name string) (h *netlink.Handle, dev netlink.Link) {
	f.t.Helper()
	f.a.Do(func() {
		var err error
		if h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
			dev, err = h.LinkByName(name)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	})
	f.t.Cleanup(h.Close)
	return h, dev
}

// fill adds very many addresses to ib0.
func (f *floods) fill() {
	f.t.Helper()
	var text strings.Builder
	for i := range f.addresses {
		fmt.Fprintf(&text, "address add 10.45.%d.%d/32 dev %s\n", i/256, i%256, ifName)
	}
	file := filepath.Join(f.a.dir, "addresses")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	start, before := time.Now(), f.a.cpu()
	f.a.Run("ip", "-batch", file)
	took, cpu := time.Since(start), f.a.cpu()-before
	f.t.Logf("%d addresses added in %v: %.1f %% of a core", f.addresses, took.Round(time.Millisecond), 100*cpu.Seconds()/took.Seconds())
}

// addressChanges returns a step that adds an address in one tick and deletes it in the
// next.
func (f *floods) addressChanges() func() {
	f.t.Helper()
	h, dev := f.handle(ifName)
	addr, err := netlink.ParseAddr("10.46.0.1/32")
	if err != nil {
		f.t.Fatal(err)
	}
	present := false
	return func() {
		change := h.AddrAdd
		if present {
			change = h.AddrDel
		}
		if err := change(dev, addr); err != nil {
			f.t.Fatal(err)
		}
		present = !present
	}
}
