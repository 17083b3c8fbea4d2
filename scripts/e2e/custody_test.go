package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// intruderEnv makes the test binary a process without privileges that attaches to ib0 and,
// if it succeeds, reads and writes frames for a moment.
const intruderEnv = "TEST_IPOIBD_E2E_INTRUDER"

const (
	intrusion   = 500 * time.Millisecond
	foreignTime = 1500 * time.Millisecond // longer than a daemon takes to notice
)

// intrude opens the device node before it drops its privileges, so the mode of the node,
// 0666 on most systems, does not matter. It prints the error, or the frames that it
// could read and write.
func intrude() {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setresgid(stranger, stranger, stranger), syscall.Setresuid(stranger, stranger, stranger))
	}
	if err == nil {
		err = attachTo(fd)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(0)
	}
	var read, wrote int
	buf := make([]byte, 4096)
	for end := time.Now().Add(intrusion); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n, err := unix.Read(fd, buf); err == nil {
			read++
			if _, err := unix.Write(fd, buf[:n]); err == nil {
				wrote++
			}
		}
	}
	fmt.Printf("attached, read %d frames and wrote %d\n", read, wrote)
	os.Exit(0)
}

// attachTo attaches a queue to ib0.
func attachTo(fd int) error {
	req, err := unix.NewIfreq(ifName)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
}

// A user without privileges cannot attach to ib0, whether the daemon runs or not.
func TestOtherUsersMayNotAttach(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		for range 3 {
			cmd := a.Command(exe)
			cmd.Env = append(os.Environ(), intruderEnv+"=1")
			out, err := cmd.CombinedOutput()
			if want := unix.EPERM.Error() + "\n"; err != nil || string(out) != want {
				t.Errorf("%s: the user's process printed %q, %v; want %q", when, out, err, want)
			}
		}
	}
	talk := b.talkTo(a)
	refused("running")
	talk.end(0)
	if n := strings.Count(a.daemon.log.String(), "another process"); n != 0 {
		t.Errorf("%d log lines about another process, want none\n%s", n, a.daemon.log)
	}
	a.daemon.stop()
	refused("stopped")
	a.start()
	a.waitCarrier()
	b.waitReaches(a)
}

// foreignQueue is a queue of ib0 in another process, which has CAP_NET_ADMIN.
type foreignQueue struct {
	h  *host
	fd int
}

func (h *host) attachForeign() *foreignQueue {
	h.tb.Helper()
	q := &foreignQueue{h: h}
	h.Do(func() {
		var err error
		if q.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			err = attachTo(q.fd)
		}
		if err != nil {
			h.tb.Fatalf("attach to %s: %v", ifName, err)
		}
	})
	return q
}

func (q *foreignQueue) set(what string, req uint, value int) {
	q.h.tb.Helper()
	if err := unix.IoctlSetPointerInt(q.fd, req, value); err != nil {
		q.h.tb.Fatalf("%s: %v", what, err)
	}
}

func (q *foreignQueue) close() { _ = unix.Close(q.fd) }

// A queue of another privileged process takes the carrier down, and the status says so
// until the queue is closed. Each change by that process is undone and logged once,
// and then the hosts reach each other as before.
func TestForeignQueue(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	mac := a.iface().MAC
	q := a.attachForeign()
	start := time.Now()
	a.waitReason("another process has attached to the interface")
	if a.carrier() {
		t.Error("the carrier is up in spite of a foreign queue")
	}
	t.Logf("carrier down %v after the queue", time.Since(start).Round(time.Millisecond))
	time.Sleep(foreignTime)
	if got := a.iface(); got.State != "waiting" || a.carrier() {
		t.Errorf("later: state %s, %q, carrier %t", got.State, got.Reason, a.carrier())
	}
	q.close()
	start = time.Now()
	a.waitCarrier()
	t.Logf("carrier up %v after the queue has gone, b reaches a %v later", time.Since(start).Round(time.Millisecond), b.waitReaches(a).Round(time.Millisecond))
	pingAll(a, b)
	a.requireLogged("carrier taken down", 1)

	for _, c := range []struct {
		what   string
		change func(*foreignQueue)
	}{
		{"virtio header length", func(q *foreignQueue) { q.set("TUNSETVNETHDRSZ", unix.TUNSETVNETHDRSZ, 12) }},
		{"persistence", func(q *foreignQueue) {
			if err := unix.IoctlSetInt(q.fd, unix.TUNSETPERSIST, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"MAC", func(*foreignQueue) { a.Run("ip", "link", "set", ifName, "address", "02:00:00:00:66:66") }},
		// An attached queue alone takes the carrier down, so it is closed first.
		{"carrier", func(q *foreignQueue) { q.close(); a.Run("ip", "link", "set", ifName, "carrier", "off") }},
	} {
		q := a.attachForeign()
		c.change(q)
		q.close()
		start := time.Now()
		logged := func() bool { return a.logged("property="+quoted(c.what)) > 0 }
		eventually(t, repairLimit, c.what+" noticed", logged)
		t.Logf("%s restored %v after it was changed", c.what, time.Since(start).Round(time.Millisecond))
		a.waitCarrier()
		b.waitReaches(a)
		pingAll(a, b)
		a.requireLogged("property="+quoted(c.what), 1)
	}
	if now := a.iface().MAC; now != mac {
		t.Errorf("MAC %s, was %s", now, mac)
	}
	a.daemon.stop()
	if !a.exists() {
		t.Errorf("%s was deleted when the daemon stopped", ifName)
	}
}

// quoted returns a value as it appears in the log.
func quoted(s string) string {
	if strings.Contains(s, " ") {
		return `"` + s + `"`
	}
	return s
}

// logged returns how often the daemon's log contains a text.
func (h *host) logged(text string) int {
	return strings.Count(h.daemon.log.String(), text)
}

// requireLogged checks how often the daemon has logged a text. It waits for that, because the log arrives through a pipe.
func (h *host) requireLogged(text string, want int) {
	h.tb.Helper()
	for end := time.Now().Add(countLimit); h.logged(text) < want && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := h.logged(text); n != want {
		h.tb.Errorf("%d log lines with %q, want %d\n%s", n, text, want, h.daemon.log)
	}
}
