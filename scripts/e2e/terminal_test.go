package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"ipoibd/link/linktest/nstest"
)

// A container may set its ib0 down and up as fast as ip can. The log then has no more
// lines than its limits allow, and afterwards the host is reachable.
func TestFlappingLinkDoesNotFloodTheLog(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	length := form(3*time.Second, 2*time.Minute)
	before, start, flaps := a.daemon.log.lines(), time.Now(), 0
	for batch := strings.Repeat("link set "+ifName+" down\nlink set "+ifName+" up\n", 50); time.Since(start) < length; flaps += 50 {
		ip := a.Command("ip", "-batch", "-")
		ip.Stdin = strings.NewReader(batch)
		if out, err := ip.CombinedOutput(); err != nil {
			t.Fatalf("ip -batch: %v\n%s", err, out)
		}
	}
	took := time.Since(start)
	a.waitReaches(b)
	time.Sleep(time.Second) // held lines appear within half a second
	lines := a.daemon.log.lines() - before
	t.Logf("%d flaps and %d lines of log in %v", flaps, lines, took.Round(time.Millisecond))
	// The total burst, and the total rate until a second after the flaps.
	if most := 200 + 50*int((time.Since(start)+time.Second)/time.Second); lines > most {
		t.Errorf("%d lines, want at most %d", lines, most)
	}
	if flaps < 30 {
		t.Errorf("%d flaps, want at least 30 for a flood", flaps)
	}
}

// The name of a process that holds the port is printed without control characters and
// cannot start a new line, no matter how the process names itself. (A daemon in its sandbox does not see
// that name.)
func TestHostileProcessNameIsEscaped(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	const name = "\x1b[31mx\nipoibd" // 15 bytes are kept (PR_SET_NAME(2const))
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		t.Fatal(err)
	}
	h.Do(func() {
		holder, err := net.ListenUDP("udp", &net.UDPAddr{Port: 4791})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { holder.Close() })
	})
	for _, args := range [][]string{
		{"devices"},
		{"devices", "--json"},
		{"run", "--sandbox=false", "--underlay", nstest.Dev, "--control", filepath.Join(h.dir, "control.sock")},
		{"run", "--underlay", "\x1b[31mx\nx", "--control", filepath.Join(h.dir, "control.sock")},
	} {
		out := printed(t, h.ipoibd(args...), `[31mx`)
		if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("ipoibd %q prints %q, want no control characters", args, out)
		}
		if !strings.Contains(out, `[31mx`) {
			t.Errorf("ipoibd %q names neither the process nor the netdev:\n%s", args, out)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "ipoibd (pid") {
				t.Errorf("ipoibd %q prints a line that begins with text from a process name:\n%s", args, out)
			}
		}
	}
}

// printed runs a command and returns its output. It kills the command after 3 s, or later if it has not printed a
// text by then.
func printed(t *testing.T, cmd *exec.Cmd, text string) string {
	t.Helper()
	var out logBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(3*time.Second, func() {
		for end := time.Now().Add(startLimit); !strings.Contains(out.String(), text) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		_ = cmd.Process.Kill()
	})
	_ = cmd.Wait() // most of them fail
	kill.Stop()
	return out.String()
}
